#pragma once
// Layer lists in settings.

#include <cstdint>
#include <string>
#include <vector>

namespace ring {

// Parses a list such as "0,4-7" or "every 4 from 3" for a model with this many layers. Throws Error if the list is
// empty or names a layer that does not exist.
std::vector<std::int64_t> parse_layer_list(const std::string& text, std::int64_t num_layers);
// Formats ascending layer numbers: "0,4-7".
std::string layers_text(const std::vector<std::int64_t>& layers);

}  // namespace ring
