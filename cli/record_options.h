#pragma once
// How commands that read text find the documents in records of JSON Lines and Parquet.

#include "cli/command.h"

namespace ring {

struct PrepareOptions;

// Adds --text-field, --prompt-field, --completion-field, --chat-field and --chat-template. `needed`: the option that
// these require; empty if none.
void add_record_options(Command command, PrepareOptions&, const std::string& needed = "");

}  // namespace ring
