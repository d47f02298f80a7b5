#pragma once

namespace CLI {
class App;
}

namespace ring {

// `ringmaster launch --nproc-per-node N -- COMMAND...`. Throws ExitCode when the workers end with a code other than 0.
void add_launch_command(CLI::App& app);

}  // namespace ring
