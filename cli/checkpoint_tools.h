#pragma once
// checkpoint reshard | prune | diff.

namespace CLI {
class App;
}

namespace ring {

void add_checkpoint_tools(CLI::App& checkpoint);

}  // namespace ring
