#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ring {

// Returns the values of a YAML document with full keys ("model.layers", "data.mixture[0].path"), in document order. A
// list of scalars is one value, because a list with one more element is easier to read as a whole. Throws YamlError if
// the string is not YAML.
std::vector<std::pair<std::string, std::string>> yaml_leaves(const std::string& text);

}  // namespace ring
