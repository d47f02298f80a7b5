#pragma once
// Traits of characters by the categories of text/unicode/categories.h, and normal forms and cases as utf8proc knows
// them. A build without utf8proc fails at the first question and names the package.

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

// The traits of all characters, one byte each. Made at the first call, which takes some milliseconds.
class Traits {
 public:
  static const Traits& all();
  std::uint8_t of(char32_t c) const { return c < table_.size() ? table_[c] : 0; }

 private:
  Traits();
  std::vector<std::uint8_t> table_;
};

enum class Form : std::uint8_t { nfc, nfd, nfkc, nfkd };

// A character, and of how many there were before it: 0: one became this one; 1: it is another one of that before it;
// -n: n + 1 became this one.
struct Changed {
  char32_t character = 0;
  int change = 0;
};

// Stretches that the form changes lie between characters that it leaves alone.
class Normalization {
 public:
  static const Normalization& to(Form);
  // Whether the character, without its neighbours, stays what it is and nothing before it joins it.
  bool stable(char32_t c) const { return !unstable_[c]; }
  // A whole stretch: it starts and ends at stable characters or at the ends of the text.
  std::vector<Changed> normalized(const std::vector<char32_t>& stretch) const;

 private:
  explicit Normalization(Form);
  bool composes_ = false, compatible_ = false;
  std::vector<bool> unstable_;
};

// Returns the text as Python's str.capitalize() has it: its first character in title case, the others in lower case,
// also of characters that become several ("\u00DFa": "Ssa"). Throws Error in a build without utf8proc unless it is
// ASCII.
std::string capitalized(std::string_view text);

// Returns the version of Unicode of normal forms and cases, utf8proc's; empty in a build without it.
std::string normal_forms_version();

// Its lower case: one character, and of U+0130 two.
std::u32string lower(char32_t c);

}  // namespace ring::unicode
