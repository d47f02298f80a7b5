#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace ring {

// Every command of the program (cli/commands.h).
void add_commands(Command app);

// Reads the program's arguments, without its name, and runs the command that they name, if any. `help COMMAND` is
// `COMMAND --help`, `--a.b=c` the setting `a.b=c`. Throws UsageError with what was probably meant, or as
// Program::parse() does.
void parse_arguments(Program& program, std::vector<std::string> arguments);

}  // namespace ring
