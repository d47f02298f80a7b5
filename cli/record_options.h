#pragma once
// Options of commands that read text: where documents are in records of JSON Lines and Parquet.

#include "cli/command.h"

namespace ring {

struct PrepareOptions;

// Adds --text-field, --prompt-field, --completion-field, --chat-field and --chat-template. needed: an option that these
// require; may be empty.
void add_record_options(Command command, PrepareOptions&, const std::string& needed = "");

}  // namespace ring
