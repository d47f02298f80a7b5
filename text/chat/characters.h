#pragma once
// Strings as sequences of characters, like Python's str.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/budget.h"

namespace ring::chat {

// Returns the length in bytes of the character at `at`; 1 if no character begins there.
std::size_t character_length(std::string_view text, std::size_t at);
// Decodes the bytes of one character.
char32_t decoded(std::string_view character);
// Returns true if the character is visible or a space, like str.isprintable(): not a control or format character, not a
// separator other than the space, and assigned in the Unicode version of text/unicode/categories.h.
bool is_printable(char32_t c);
std::size_t character_count(std::string_view text);
// Returns the byte offset of character number `place`; the size of the text if it has fewer characters.
std::size_t byte_offset_of(std::string_view text, std::size_t place);

// Returns true for white space, like str.isspace().
bool is_blank(std::string_view character);

// Strips like str.strip(). characters: those to remove; null removes white space.
std::string_view strip(std::string_view text, bool left, bool right, const std::string* characters);

// Returns the position of the first `part` in `text` at or after `from`; npos if there is none. Takes linear time for
// any text.
std::size_t find_part(std::string_view text, std::string_view part, std::size_t from = 0);

// The next two functions charge the budget for their results, but not for reading `text`.

// Splits at `separator` or, if it is null, at white space, which is removed. Splits at most `max` times, without a
// limit if `max` < 0.
std::vector<std::string> split(std::string_view text, const std::string* separator, std::int64_t max, Budget&);
std::string replaced(std::string_view text, const std::string& what, const std::string& with, std::int64_t max,
                     Budget&);

}  // namespace ring::chat
