#pragma once
// Manual pages, written from the options as the program reads them.

#include <string>

namespace CLI {
class App;
}

namespace ring {

// In the format of man(7), section 1. `command` is one of the program's, with all that is below it; the program itself:
// its commands, each of which has a page of its own.
std::string man_page(const CLI::App& program, const CLI::App& command);

// "ringmaster-train.1", or "ringmaster.1".
std::string man_page_name(const CLI::App& program, const CLI::App& command);

}  // namespace ring
