#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ring {

// The values of a YAML text with their keys in full ("model.layers", "data.mixture[0].path"), in its order. A list of
// scalars is one value: one that grew by an element reads better as a whole. YamlError: it is not YAML.
std::vector<std::pair<std::string, std::string>> yaml_leaves(const std::string& text);

}  // namespace ring
