#pragma once
// Texts by their characters, as Python's str has them.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ring::chat {

// What a template may hold in one text, or in a list or an object with everything in it.
inline constexpr std::size_t kMostBytes = std::size_t{1} << 28, kValueBytes = 64;  // the second by itself, for a value
void check_bytes(std::size_t bytes);  // Error: more than that; asked while something grows

// The bytes of the character that begins at `at`; a byte that begins none counts as one.
std::size_t character_length(std::string_view text, std::size_t at);
std::size_t character_count(std::string_view text);
std::vector<std::string_view> characters(std::string_view text);

// Blank space as str.isspace() has it.
bool is_blank(std::string_view character);

// What str.strip() leaves; `of`: the characters that go, none given: blank space.
std::string_view strip(std::string_view text, bool left, bool right, const std::string* of);
// At `separator`, or without one at blank space, of which none is left; at most `most` cuts, < 0: all.
std::vector<std::string> split(std::string_view text, const std::string* separator, std::int64_t most);
std::string replaced(std::string_view text, const std::string& what, const std::string& with, std::int64_t most);

}  // namespace ring::chat
