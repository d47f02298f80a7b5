#pragma once
// Layers as settings name them.

#include <cstdint>
#include <string>
#include <vector>

namespace ring {

// What "0,4-7" or "every 4 from 3" names, of so many layers. Error: it names none, or one that does not exist.
std::vector<std::int64_t> layers_named(const std::string& text, std::int64_t layers);
// The reverse, of ascending ones: "0,4-7".
std::string layers_text(const std::vector<std::int64_t>& layers);

}  // namespace ring
