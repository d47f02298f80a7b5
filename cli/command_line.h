#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ring {

// Every command of the program (cli/commands.h).
void add_commands(CLI::App& app);

// Reads the program's arguments, without its name, and runs the command that they name, if any. `help COMMAND` is
// `COMMAND --help`, `--a.b=c` the setting `a.b=c`. CLI::ParseError: they cannot be understood, with what was probably
// meant. Error: as the command says.
void parse_arguments(CLI::App& app, std::vector<std::string> arguments);

// From now on commands are only read: parse_arguments runs none.
void run_nothing(CLI::App& app);

}  // namespace ring
