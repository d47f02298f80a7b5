#pragma once
// Texts by their characters, as Python's str has them.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/budget.h"

namespace ring::chat {

// The bytes of the character that begins at `at`; a byte that begins none counts as one.
std::size_t character_length(std::string_view text, std::size_t at);
// Returns the character whose bytes these are.
char32_t decoded(std::string_view character);
// Returns whether people see the character, or it is the blank, as str.isprintable() says it: it is no control or
// format character, no other space or separator, and is assigned in the Unicode of text/unicode/categories.h.
bool is_printable(char32_t c);
std::size_t character_count(std::string_view text);
// Returns the byte at which the character `place` begins; the size of the text if it has no more.
std::size_t byte_of(std::string_view text, std::size_t place);

// Blank space as str.isspace() has it.
bool is_blank(std::string_view character);

// What str.strip() leaves; `of`: the characters that go, none given: blank space.
std::string_view strip(std::string_view text, bool left, bool right, const std::string* of);

// Returns where `part` begins in `text`, at `from` or after it, or npos. Takes time in proportion to both, whatever
// they are.
std::size_t find_part(std::string_view text, std::string_view part, std::size_t from = 0);

// The budget pays for what these make; reading `text` is the caller's to pay.
// At `separator`, or without one at blank space, of which none is left; at most `most` cuts, < 0: all.
std::vector<std::string> split(std::string_view text, const std::string* separator, std::int64_t most, Budget&);
std::string replaced(std::string_view text, const std::string& what, const std::string& with, std::int64_t most,
                     Budget&);

}  // namespace ring::chat
