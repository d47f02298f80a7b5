#include "data/glob.h"

#include <algorithm>
#include <cwctype>
#include <optional>
#include <string>
#include <vector>

#include "text/utf8.h"

namespace ring {
namespace {

// Splits a path into its components; drops empty components and ".", which name no folder.
std::vector<std::string> parts_of(std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(path.size(), part.size() + 1));
    if (!part.empty() && part != ".") parts.emplace_back(part);
  }
  return parts;
}

// Characters are code points. fnmatch() would also match a multibyte character byte by byte, so that "??" would match
// "\xC3\xA9".
using Characters = std::u32string;

// Decodes UTF-8. Invalid bytes become code points beyond Unicode, which match only themselves and wildcards.
Characters characters_of(std::string_view text) {
  Characters out;
  while (!text.empty()) {
    const std::size_t length = utf8::valid_length(text);
    out += length > 0 ? utf8::decode(text, length) : 0x110000 + static_cast<unsigned char>(text[0]);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

bool in_class(char32_t c, const std::string& name) {
  return c < 128 && std::iswctype(static_cast<wint_t>(c), std::wctype(name.c_str())) != 0;
}

// Matches `c` against the bracket expression at `at`, and moves `at` past the expression. Returns nullopt if the
// bracket is not closed and therefore stands for itself.
std::optional<bool> in_brackets(const Characters& pattern, std::size_t& at, char32_t c) {
  std::size_t i = at + 1;
  const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  i += negated;
  bool found = false;
  for (const std::size_t first = i; i < pattern.size(); ++i) {
    if (pattern[i] == ']' && i > first) {
      at = i + 1;
      return found != negated;
    }
    if (pattern.compare(i, 2, U"[:") == 0)
      if (const std::size_t end = pattern.find(U":]", i + 2); end != Characters::npos) {
        found |= in_class(c, std::string(pattern.begin() + static_cast<std::ptrdiff_t>(i) + 2,
                                         pattern.begin() + static_cast<std::ptrdiff_t>(end)));
        i = end + 1;
        continue;
      }
    if (pattern[i] == '\\' && i + 1 < pattern.size()) ++i;
    const char32_t low = pattern[i];
    char32_t high = low;
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      i += pattern[i + 2] == '\\' && i + 3 < pattern.size() ? 3 : 2;
      high = pattern[i];
    }
    found |= low <= c && c <= high;
  }
  return {};
}

// Matches one character of a name against the element at `at`, which must not be a star, and moves `at` past the
// element.
bool character_matches(const Characters& pattern, std::size_t& at, char32_t c) {
  if (pattern[at] == '?') return ++at, true;
  if (pattern[at] == '[')
    if (const std::optional<bool> found = in_brackets(pattern, at, c)) return *found;
  if (pattern[at] == '\\' && at + 1 < pattern.size()) ++at;
  return pattern[at++] == c;
}

// Matches a pattern of `elements` elements against `size` items. is_wildcard(p) returns true if element p matches any
// number of items. matches(p, n) tests item n and moves p past the element. After a mismatch, the last wildcard takes
// one more item.
template <class IsWildcard, class Matches>
bool wildcards_match(std::size_t elements, std::size_t size, const IsWildcard& is_wildcard, const Matches& matches) {
  std::size_t p = 0, n = 0, after_wildcard = 0, wildcard_end = 0;
  bool wildcard = false;
  while (n < size) {
    std::size_t next = p;
    if (p < elements && is_wildcard(p)) {
      wildcard = true;
      after_wildcard = ++p;
      wildcard_end = n;
    } else if (p < elements && matches(next, n)) {
      p = next;
      ++n;
    } else if (wildcard) {
      p = after_wildcard;
      n = ++wildcard_end;
    } else {
      return false;
    }
  }
  while (p < elements && is_wildcard(p)) ++p;
  return p == elements;
}

bool name_matches(std::string_view pattern_text, std::string_view name_text) {
  const Characters pattern = characters_of(pattern_text), name = characters_of(name_text);
  return wildcards_match(
      pattern.size(), name.size(), [&](std::size_t p) { return pattern[p] == '*'; },
      [&](std::size_t& p, std::size_t n) { return character_matches(pattern, p, name[n]); });
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view path) {
  const std::vector<std::string> names = parts_of(path);
  if (names.empty()) return false;
  if (pattern.find('/') == std::string_view::npos) return name_matches(pattern, names.back());
  std::vector<std::string> parts = parts_of(pattern);
  if (!parts.empty() && parts.back() == "**") parts.emplace_back("*");  // matches only files, not folders
  return wildcards_match(
      parts.size(), names.size(), [&](std::size_t p) { return parts[p] == "**"; },
      [&](std::size_t& p, std::size_t n) { return name_matches(parts[p], names[n]) && ++p; });
}

}  // namespace ring
