#pragma once
// Output files of commands; the path is given by an option.

#include <string>
#include <vector>

#include "core/files.h"

namespace ring {

// Writes the whole file or nothing. Throws Error with the file and the reason.
void write_whole(const std::string& path, const std::string& text);

// Throws Error if the option's output would overwrite an input: it exists and is one of the inputs, or a file in an
// input folder. Ignores inputs that do not exist, such as names of tokenizers.
void check_output_is_no_input(const std::string& option, const std::string& output,
                              const std::vector<std::string>& inputs);

// Appends lines to a file; each line is written completely or not at all. Throws Error with the file and the reason.
class LineFile {
 public:
  LineFile() = default;
  explicit LineFile(const std::string& path);
  void add(const std::string& line);

 private:
  FileHandle file_;
};

}  // namespace ring
