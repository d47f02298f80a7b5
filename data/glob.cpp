#include "data/glob.h"

#include <fnmatch.h>

#include <algorithm>
#include <string>
#include <vector>

namespace ring {
namespace {

// Splits a path into its components, without empty ones and ".", which name no folder.
std::vector<std::string> parts_of(std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(path.size(), part.size() + 1));
    if (!part.empty() && part != ".") parts.emplace_back(part);
  }
  return parts;
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view path) {
  const std::vector<std::string> names = parts_of(path);
  if (names.empty()) return false;
  if (pattern.find('/') == std::string_view::npos)
    return ::fnmatch(std::string(pattern).c_str(), names.back().c_str(), 0) == 0;
  std::vector<std::string> parts = parts_of(pattern);
  if (!parts.empty() && parts.back() == "**") parts.emplace_back("*");  // files, not folders
  // Wildcard matching with backtracking: on a mismatch, the last `**` absorbs one more folder.
  std::size_t p = 0, n = 0, after_star = 0, star_end = 0;
  bool star = false;
  while (n < names.size()) {
    if (p < parts.size() && parts[p] == "**") {
      star = true;
      after_star = ++p;
      star_end = n;
    } else if (p < parts.size() && ::fnmatch(parts[p].c_str(), names[n].c_str(), 0) == 0) {
      ++p, ++n;
    } else if (star) {
      p = after_star;
      n = ++star_end;
    } else {
      return false;
    }
  }
  return p == parts.size();
}

}  // namespace ring
