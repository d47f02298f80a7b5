#pragma once
// UTF-8 checks for strings that go into JSON and YAML, which must be UTF-8.

#include <string_view>

namespace ring {

bool is_utf8(std::string_view text);

}  // namespace ring
