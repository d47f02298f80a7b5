#pragma once
// Manual pages, written from the options as the program reads them.

#include <string>

#include "cli/command.h"

namespace ring {

// In the format of man(7), section 1. `command` is one of the program's, with all that is below it; the program itself:
// its commands, each of which has a page of its own.
std::string man_page(Command program, Command command);

// "ringmaster-train.1", or "ringmaster.1".
std::string man_page_name(Command program, Command command);

}  // namespace ring
