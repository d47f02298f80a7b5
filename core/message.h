#pragma once
// The length of messages. What a message quotes is shortened by shown() (core/yaml.h).

#include <cstddef>
#include <string>
#include <string_view>

namespace ring {

// The longest message that is written, in bytes.
inline constexpr std::size_t kMaxMessage = 8192;
// Returns `message`. If it is longer than kMaxMessage, its middle is replaced by its size, so that what failed and what
// to do remain.
std::string bounded_message(std::string_view message);

}  // namespace ring
