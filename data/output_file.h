#pragma once
// Texts that commands write to a file that an option names.

#include <string>

#include "core/files.h"

namespace ring {

// Completely or not at all. Error names the file and the reason.
void write_whole(const std::string& path, const std::string& text);

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
