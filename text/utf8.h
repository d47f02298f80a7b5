#pragma once
// UTF-8, RFC 3629: overlong forms, surrogates and values above U+10FFFF are invalid.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ring::utf8 {

inline constexpr char32_t kReplacement = 0xFFFD;

constexpr bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Returns the length in bytes of the valid character at the start of `text`; 0 if there is none. `text` must not be
// empty.
std::size_t valid_length(std::string_view text);

// Returns true if `text` is the beginning of a valid character that more bytes could complete.
bool is_incomplete(std::string_view text);

// Decodes a character of `length` bytes; `length` must be valid_length(text) and > 0.
char32_t decode(std::string_view text, std::size_t length);

void append(std::string& out, char32_t c);

// Returns the length of the longest valid prefix.
std::size_t valid_prefix_length(std::string_view text);

// Returns the number of bytes that start a character, which is the number of characters in valid text.
std::int64_t count_characters(std::string_view text);

// Returns the largest offset <= `position` (at most three bytes before it) that does not split a character of valid
// text.
std::size_t floor_boundary(std::string_view text, std::size_t position);

}  // namespace ring::utf8
