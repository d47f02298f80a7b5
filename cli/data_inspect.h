#pragma once
// data inspect: what a corpus holds, and which tokens of some documents count.

namespace CLI {
class App;
}

namespace ring {

void add_data_inspect(CLI::App& data);

}  // namespace ring
