#pragma once
// data export: a corpus for another trainer.

namespace CLI {
class App;
}

namespace ring {

void add_data_export(CLI::App& data);

}  // namespace ring
