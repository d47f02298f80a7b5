#include "data/glob.h"

#include <fnmatch.h>
#include <locale.h>

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

// While the object lives, the C library reads names as UTF-8 in this thread: `?` is a character and not a byte. Every
// Debian and Ubuntu has the locale; without it, names of ASCII match alike.
class Utf8Names {
 public:
  Utf8Names() : before_(::uselocale(utf8())) {}
  ~Utf8Names() { ::uselocale(before_); }
  Utf8Names(const Utf8Names&) = delete;
  Utf8Names& operator=(const Utf8Names&) = delete;

 private:
  static locale_t utf8() {
    static const locale_t locale = ::newlocale(LC_CTYPE_MASK | LC_COLLATE_MASK, "C.UTF-8", nullptr);
    return locale;
  }
  locale_t before_;
};

bool name_matches(const std::string& pattern, const std::string& name) {
  const Utf8Names utf8;
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view path) {
  const std::vector<std::string> names = parts_of(path);
  if (names.empty()) return false;
  if (pattern.find('/') == std::string_view::npos) return name_matches(std::string(pattern), names.back());
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
    } else if (p < parts.size() && name_matches(parts[p], names[n])) {
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
