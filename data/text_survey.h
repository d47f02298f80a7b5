#pragma once
// Surveys text files before they are encoded: counts characters and takes samples.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text_files.h"

namespace ring {

// The characters in the files, in the form that chars_tokenizer() takes, and the number of characters that start in
// each file. A byte that is not valid UTF-8 counts as U+FFFD.
struct CharacterCount {
  std::string characters;
  std::vector<std::uint64_t> per_file;
};
CharacterCount count_characters(const std::vector<TextFile>& files);

// Returns the byte offset in `file` of character number `character`; the file's size if the file has fewer characters.
std::uint64_t offset_of_character(const TextFile& file, std::uint64_t character);

// Calls take(text) with an evenly spread sample of the files, about `max_bytes` bytes, in pieces that end with a line.
void sample_text(const std::vector<TextFile>& files, std::uint64_t max_bytes,
                 const std::function<void(std::string_view)>& take);

}  // namespace ring
