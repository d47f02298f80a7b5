#pragma once

namespace CLI {
class App;
}

namespace ring {

void add_attention_fit(CLI::App& attention);  // attention fit

}  // namespace ring
