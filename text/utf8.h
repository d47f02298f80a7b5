#pragma once
// UTF-8, RFC 3629: overlong forms, surrogates and values above U+10FFFF are invalid.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ring::utf8 {

inline constexpr char32_t kReplacement = 0xFFFD;

constexpr bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// The bytes of the valid character that `text` starts with; 0 when it starts with none. text is not empty.
std::size_t valid_length(std::string_view text);

// Whether `text` is a proper beginning of some valid character, so that more bytes could complete it.
bool incomplete(std::string_view text);

// The character of the `length` bytes that valid_length() accepted.
char32_t decode(std::string_view text, std::size_t length);

void append(std::string& out, char32_t c);

// The length of the longest valid prefix.
std::size_t valid_prefix(std::string_view text);

// Bytes that start a character: the number of characters in valid text.
std::int64_t count_characters(std::string_view text);

// The largest cut <= `position` that does not split a character of valid text (at most three bytes back).
std::size_t floor_boundary(std::string_view text, std::size_t position);

}  // namespace ring::utf8
