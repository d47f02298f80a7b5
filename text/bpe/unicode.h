#pragma once
// Traits of characters, from the categories in text/unicode/categories.h; normal forms and case mapping, by utf8proc.
// In a build without utf8proc, the first use throws Error, which names the package.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ring::unicode {

enum Trait : std::uint8_t {
  kLetter = 1,  // general category L
  kNumber = 2,  // general category N
  kSpace = 4,   // White_Space
  kWord = 8     // \w of UTS 18, Annex C: Alphabetic, marks, decimal digits, connectors, joiners
};

// Traits of all characters, one byte each. The first call builds the table, which takes a few milliseconds.
class Traits {
 public:
  static const Traits& all();
  std::uint8_t of(char32_t c) const { return c < table_.size() ? table_[c] : 0; }

 private:
  Traits();
  std::vector<std::uint8_t> table_;
};

enum class Form : std::uint8_t { nfc, nfd, nfkc, nfkd };

// A character of normalized text. change: 0 if it replaces one source character; -n if it replaces n + 1 source
// characters; 1 if it is an additional character from the same source as the previous one.
struct NormalizedCharacter {
  char32_t character = 0;
  int change = 0;
};

// A normal form. Text between two stable characters can be normalized without the rest of the text.
class Normalization {
 public:
  static const Normalization& of_form(Form);
  // Returns true if the character stays unchanged on its own and does not combine with the previous character.
  bool stable(char32_t c) const { return !unstable_[c]; }
  // Normalizes a part of a text that starts and ends at stable characters or at the ends of the text.
  std::vector<NormalizedCharacter> normalized(const std::vector<char32_t>& stretch) const;

 private:
  explicit Normalization(Form);
  bool composes_ = false, compatible_ = false;
  std::vector<bool> unstable_;
};

// Like Python's str.capitalize(): returns the text with the first character in title case and the others in lower case,
// even if one character becomes several ("\u00DFa" becomes "Ssa"). In a build without utf8proc, throws Error unless the
// text is ASCII.
std::string capitalized(std::string_view text);

// Returns the Unicode version of normal forms and cases, which is utf8proc's; "" in a build without utf8proc.
std::string normal_forms_version();

// Returns the character in lower case: one character, or two for U+0130.
std::u32string lower(char32_t c);

}  // namespace ring::unicode
