#include "tests/meta/source_tree.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

namespace ring::test {
namespace {

namespace fs = std::filesystem;
constexpr std::uintmax_t kLargestText = 2 << 20;

std::vector<std::string> git_files(const fs::path& root) {
  const std::string command =
      "git -C '" + root.string() + "' ls-files --cached --others --exclude-standard 2>/dev/null";
  std::string out;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    std::array<char, 4096> buffer;
    while (const std::size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) out.append(buffer.data(), n);
    pclose(pipe);
  }
  return lines_of(out);
}

std::vector<std::string> walked_files(const fs::path& root) {
  static const std::set<std::string> outputs = {".git", "build", "dist", "runs", ".cache"};
  std::vector<std::string> out;
  for (fs::recursive_directory_iterator it(root), end; it != end; ++it) {
    if (it->is_directory() && outputs.contains(it->path().filename().string())) it.disable_recursion_pending();
    if (it->is_regular_file()) out.push_back(fs::relative(it->path(), root).generic_string());
  }
  return out;
}

}  // namespace

bool is_source(const std::string& path) {
  const std::string extension = fs::path(path).extension().string();
  return extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<SourceFile> source_tree(const fs::path& root) {
  std::vector<std::string> paths = git_files(root);
  if (paths.empty()) paths = walked_files(root);
  std::sort(paths.begin(), paths.end());
  std::vector<SourceFile> files;
  for (const std::string& path : paths) {
    const fs::path full = root / path;
    if (!fs::is_regular_file(full) || fs::file_size(full) > kLargestText) continue;  // deleted, or data
    std::ifstream in(full, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    if (text.find('\0') == std::string::npos) files.push_back({path, std::move(text)});
  }
  return files;
}

}  // namespace ring::test
