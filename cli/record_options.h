#pragma once
// Options of commands that read text: where documents are in JSON Lines and Parquet records.

#include "cli/command.h"

namespace ring {

struct PrepareOptions;

// Adds --text-field, --prompt-field, --completion-field, --chat-field, --preferences and --chat-template.
// required_option: an option that these options require; may be empty.
void add_record_options(Command command, PrepareOptions&, const std::string& required_option = "");

}  // namespace ring
