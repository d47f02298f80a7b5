#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ring {

// The commands of the program, or those below one of them.
std::vector<std::string> command_names(const CLI::App&);
const CLI::App* find_command(const CLI::App&, const std::string& name);  // null: there is none

}  // namespace ring
