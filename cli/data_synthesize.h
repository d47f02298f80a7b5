#pragma once
// data synthesize: a corpus of generated tasks.

namespace CLI {
class App;
}

namespace ring {

void add_data_synthesize(CLI::App& data);

}  // namespace ring
