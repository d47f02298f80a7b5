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

// The program's arguments, with the `--` of launch before the name of a command where it was left out.
// CLI::ParseError: an option before it that launch does not have.
std::vector<std::string> separate_command(const CLI::App& app, std::vector<std::string> arguments);

}  // namespace ring
