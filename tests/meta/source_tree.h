#pragma once
// The project's own files, for tests that read them.

#include <filesystem>
#include <string>
#include <vector>

namespace ring::test {

struct SourceFile {
  std::string path;  // relative to the root: "core/check.h"
  std::string text;
};

// Returns every text file below `root` that git would track; without git, every text file outside build outputs. Sorted
// by path.
std::vector<SourceFile> source_tree(const std::filesystem::path& root);

bool is_source(const std::string& path);  // C++ or CUDA
std::vector<std::string> lines_of(const std::string& text);

}  // namespace ring::test
