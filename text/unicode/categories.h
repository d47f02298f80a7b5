#pragma once
// General categories of characters. All that divides text by classes of characters asks here, so that tokens do not
// depend on the versions of libraries: built-in patterns, patterns matched by PCRE2, digits, and the edges of added
// tokens. The version is that of tokenizers 0.23 (Oniguruma and Rust's regex).

#include <cstdint>
#include <string_view>
#include <vector>

namespace ring::unicode {

inline constexpr std::string_view kVersion = "16.0";

// The names of Unicode, such as lu for Lu; cn are characters that are not assigned.
enum class Category : std::uint8_t {
  cn,
  lu,
  ll,
  lt,
  lm,
  lo,
  mn,
  mc,
  me,
  nd,
  nl,
  no,
  pc,
  pd,
  ps,
  pe,
  pi,
  pf,
  po,
  sm,
  sc,
  sk,
  so,
  zs,
  zl,
  zp,
  cc,
  cf,
  cs,
  co
};
Category category(char32_t c);

struct CharacterRange {
  char32_t first = 0, last = 0;
  bool operator==(const CharacterRange&) const = default;
};
// Returns the characters of a category ("Lu"), of all that begin with a letter ("L"), or of the script Han ("Han"), in
// order; nothing if Unicode has no category of that name.
std::vector<CharacterRange> characters_of(std::string_view name);

}  // namespace ring::unicode
