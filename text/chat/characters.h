#pragma once
// Strings as sequences of characters, like Python's str.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/budget.h"

namespace ring::chat {

// Returns the length in bytes of the character at `at`; a byte that begins no character counts as one.
std::size_t character_length(std::string_view text, std::size_t at);
// Decodes the bytes of one character.
char32_t decoded(std::string_view character);
// Returns true if the character is visible or a space, like str.isprintable(): not a control or format character, not
// another space or separator, and assigned in the Unicode version of text/unicode/categories.h.
bool is_printable(char32_t c);
std::size_t character_count(std::string_view text);
// Returns the byte offset of character number `place`, or the size of the text if it has fewer.
std::size_t byte_of(std::string_view text, std::size_t place);

// Returns true for white space, like str.isspace().
bool is_blank(std::string_view character);

// Strips like str.strip(). of: the characters to remove; null removes white space.
std::string_view strip(std::string_view text, bool left, bool right, const std::string* of);

// Returns the position of the first `part` in `text` at or after `from`, or npos. Always takes linear time.
std::size_t find_part(std::string_view text, std::string_view part, std::size_t from = 0);

// The next two charge the budget for their results, not for reading `text`.
// Splits at `separator`, or if null at white space, which is removed. Makes at most `max` cuts; < 0: no limit.
std::vector<std::string> split(std::string_view text, const std::string* separator, std::int64_t max, Budget&);
std::string replaced(std::string_view text, const std::string& what, const std::string& with, std::int64_t max,
                     Budget&);

}  // namespace ring::chat
