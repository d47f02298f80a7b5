#pragma once
// Writes manual pages from the program's options.

#include <string>

#include "cli/command.h"

namespace ring {

// Returns a page in the format of man(7), section 1: either for a command with all its subcommands, or for the program
// with a list of its commands, each of which has its own page.
std::string man_page(Command program, Command command);

// Returns the file name of the page, e.g. "ringmaster-train.1", or "ringmaster.1" for the program.
std::string man_page_name(Command program, Command command);

}  // namespace ring
