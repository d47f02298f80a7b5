#pragma once
// Texts that commands write to a file that an option names.

#include <string>
#include <vector>

#include "core/files.h"

namespace ring {

// Completely or not at all. Error names the file and the reason.
void write_whole(const std::string& path, const std::string& text);

// Throws Error if the output of this option exists and is one of the inputs, or a file in a folder among them, which it
// would replace. Inputs that do not exist, such as names of tokenizers, are passed over.
void check_output_is_no_input(const std::string& option, const std::string& output,
                              const std::vector<std::string>& inputs);

// A file that lines are appended to, each completely or not at all. Error names the file and the reason.
class LineFile {
 public:
  LineFile() = default;
  explicit LineFile(const std::string& path);
  void add(const std::string& line);

 private:
  FileHandle file_;
};

}  // namespace ring
