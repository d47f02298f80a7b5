#pragma once
// Files of choices among kernels and library algorithms: one line `"key": "choice"` each, which is YAML and needs no
// parser. A key names everything that the choice depends on; neither text holds quotes.

#include <map>
#include <string>

namespace ring {

using ChoiceMap = std::map<std::string, std::string>;

inline constexpr std::size_t kMaxChoiceBytes = 16 << 20;  // of one file; a choice takes about 150

// Adds the choices in `text` to `choices`, replacing those of the same key. Throws Error, naming `name` and the line,
// if a line is neither a choice nor empty nor a comment.
void parse_choices(const std::string& text, const std::string& name, ChoiceMap& choices);
std::string to_text(const ChoiceMap&);

// Reads a file that write_choice_file() wrote. Returns no choices if there is no such file. Throws Error if it is
// damaged, or written by a version of the program whose keys have another meaning.
ChoiceMap read_choice_file(const std::string& path);

// Replaces the file by way of a temporary one beside it, and creates its folder. Throws Error if it cannot be written.
void write_choice_file(const std::string& path, const ChoiceMap&);

}  // namespace ring
