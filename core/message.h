#pragma once
// Limits the length of messages. shown() (core/yaml.h) shortens the strings that a message quotes.

#include <cstddef>
#include <string>
#include <string_view>

namespace ring {

// The maximum length of a message, in bytes.
inline constexpr std::size_t kMaxMessage = 8192;
// Returns `message`. If it is longer than kMaxMessage, its middle is replaced by its size. This keeps the beginning,
// which says what failed, and the end, which says what to do.
std::string bounded_message(std::string_view message);

}  // namespace ring
