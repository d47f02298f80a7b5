#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace ring {

// Adds every command of the program (see cli/commands.h).
void add_commands(Command app);

// Runs the command that the arguments (without the program's name) select; runs nothing if they select none. Treats
// `help COMMAND` as `COMMAND --help`, and `--a.b=c` as the setting `a.b=c`. Throws UsageError with a suggestion, or an
// exception of Program::parse().
void parse_arguments(Program& program, std::vector<std::string> arguments);

}  // namespace ring
