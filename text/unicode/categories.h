#pragma once
// General categories of characters. All code that splits text by character classes uses this table, so that tokens do
// not depend on library versions: built-in patterns, patterns matched by PCRE2, digits, and the edges of added tokens.
// The Unicode version is that of tokenizers 0.23 (Oniguruma and Rust's regex).

#include <cstdint>
#include <string_view>
#include <vector>

namespace ring::unicode {

inline constexpr std::string_view kVersion = "16.0";
inline constexpr char32_t kCodePoints = 0x110000;  // number of code points

// Unicode's names in lower case (lu is Lu); cn is unassigned.
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
// Returns the characters in a category ("Lu"), in all categories that begin with a letter ("L"), or in the script Han
// ("Han"), in ascending order; empty if Unicode has no such category.
std::vector<CharacterRange> characters_of(std::string_view name);

}  // namespace ring::unicode
