#pragma once
// Texts that have to be UTF-8, as JSON and YAML hold no other.

#include <string_view>

namespace ring {

bool is_utf8(std::string_view text);

}  // namespace ring
