#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ring {

// `ringmaster launch --nproc-per-node N -- COMMAND...`. Throws ExitCode when the workers end with a code other than 0.
// Error: a command that several processes do not share, or none.
void add_launch_command(CLI::App& app);

// Those of the whole program.
void add_commands(CLI::App& app);

// Reads the program's arguments, without its name, and runs the command that they name, if any. `help COMMAND` is
// `COMMAND --help`, `--a.b=c` the setting `a.b=c`. CLI::ParseError: they cannot be understood, with what was probably
// meant. Error: as the command says.
void parse_arguments(CLI::App& app, std::vector<std::string> arguments);

// From now on commands are only read: parse_arguments runs none.
void run_nothing(CLI::App& app);

}  // namespace ring
