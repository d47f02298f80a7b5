#pragma once
// What has to be known about text files before they are encoded.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text_files.h"

namespace ring {

// The characters of the files, as chars_tokenizer() takes them, and how many start in each file. A byte that is not
// UTF-8 stands for U+FFFD.
struct CharacterCount {
  std::string characters;
  std::vector<std::uint64_t> per_file;
};
CharacterCount count_characters(const std::vector<TextFile>& files);

// The byte of `file` where character number `character` starts; the file's size when it has fewer.
std::uint64_t offset_of_character(const TextFile& file, std::uint64_t character);

// Calls take(text) with an even sample of the files of about `max_bytes` bytes, in stretches that end after a line.
void sample_text(const std::vector<TextFile>& files, std::uint64_t max_bytes,
                 const std::function<void(std::string_view)>& take);

}  // namespace ring
