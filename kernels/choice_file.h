#pragma once
// Files that record which kernels and library algorithms were chosen. Each line is `"key": "choice"`, which is YAML but
// needs no YAML parser. A key names everything that the choice depends on. Neither a key nor a choice contains quotes.

#include <map>
#include <string>

namespace ring {

using ChoiceMap = std::map<std::string, std::string>;

inline constexpr std::size_t kMaxChoiceFileBytes = 16 << 20;  // a choice takes about 150 bytes

// Adds the choices in `text` to `choices`, replacing choices with the same key. Throws Error, naming `name` and the
// line, if a line is not a choice, a comment or empty.
void parse_choices(const std::string& text, const std::string& name, ChoiceMap& choices);
std::string to_text(const ChoiceMap&);

// Reads a file written by write_choice_file(). Returns an empty map if the file does not exist. Throws Error if the
// file is damaged, or was written by a version of the program that gives keys or choices a different meaning.
ChoiceMap read_choice_file(const std::string& path);

// Replaces the file by renaming a temporary file beside it, and creates the folder if it is missing. Throws Error if
// the file cannot be written.
void write_choice_file(const std::string& path, const ChoiceMap&);

}  // namespace ring
