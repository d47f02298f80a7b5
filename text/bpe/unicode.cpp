#include "text/bpe/unicode.h"

#include <algorithm>
#include <array>

#include "core/check.h"
#include "text/unicode/categories.h"
#include "text/utf8.h"

#ifdef RING_WITH_UTF8PROC
#include <utf8proc.h>
#endif

namespace ring::unicode {
namespace {

#ifdef RING_WITH_UTF8PROC

bool is_surrogate(char32_t c) { return c >= 0xD800 && c < 0xE000; }
bool between(char32_t c, char32_t first, char32_t last) { return c >= first && c <= last; }

// White_Space, from Unicode's PropList.txt; unchanged since version 6.3.
bool is_space(char32_t c) {
  return between(c, 9, 13) || between(c, 0x2000, 0x200A) || between(c, 0x2028, 0x2029) || c == ' ' || c == 0x85 ||
         c == 0xA0 || c == 0x1680 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Returns true for letters in circles and squares: symbols that have the property Alphabetic.
bool is_alphabetic_symbol(char32_t c) {
  return between(c, 0x24B6, 0x24E9) || between(c, 0x1F130, 0x1F149) || between(c, 0x1F150, 0x1F169) ||
         between(c, 0x1F170, 0x1F189);
}

std::uint8_t traits_of(char32_t c) {
  const Category k = category(c);
  const bool letter = k >= Category::lu && k <= Category::lo;
  const bool mark = k >= Category::mn && k <= Category::me;
  const bool number = k >= Category::nd && k <= Category::no;
  const bool word = letter || mark || (number && k != Category::no) || k == Category::pc ||
                    between(c, 0x200C, 0x200D) || is_alphabetic_symbol(c);
  return static_cast<std::uint8_t>((letter ? kLetter : 0) | (number ? kNumber : 0) | (is_space(c) ? kSpace : 0) |
                                   (word ? kWord : 0));
}

constexpr std::size_t kLongest = 18;  // longest decomposition of one character (U+FDFA)

using Decomposed = std::vector<char32_t>;
Decomposed decomposed(char32_t c, bool compatible) {
  std::array<utf8proc_int32_t, 4 * kLongest> out{};
  int boundary = 0;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), out.data(), out.size(), options, &boundary);
  RING_CHECK(n > 0 && static_cast<std::size_t>(n) <= out.size(), "a character decomposed into ", n, " code points");
  return {out.begin(), out.begin() + n};
}

// Returns the composition of two characters; 0 if they do not compose. UTF8PROC_STABLE respects Unicode's composition
// exclusions.
char32_t composed(char32_t a, char32_t b) {
  std::array<utf8proc_int32_t, 2> pair{static_cast<utf8proc_int32_t>(a), static_cast<utf8proc_int32_t>(b)};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  return utf8proc_normalize_utf32(pair.data(), 2, options) == 1 ? static_cast<char32_t>(pair[0]) : 0;
}

int combining_class(char32_t c) { return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class; }

// Sorts marks into canonical order: a stable sort by combining class.
void reorder(std::vector<NormalizedCharacter>& text) {
  const auto starts = [](const NormalizedCharacter& c) { return combining_class(c.character) == 0; };
  for (auto at = text.begin(); at != text.end();) {
    const auto marks = std::find_if_not(at, text.end(), starts);
    at = std::find_if(marks, text.end(), starts);
    std::stable_sort(marks, at, [](const NormalizedCharacter& a, const NormalizedCharacter& b) {
      return combining_class(a.character) < combining_class(b.character);
    });
  }
}

// Returns true if a normal form may change the character. A cheap test: false for most characters that no form changes.
bool may_change(char32_t c) {
  if (c < 0x80 || is_surrogate(c)) return false;
  const utf8proc_property_t* p = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  return p->combining_class != 0 || p->decomp_seqindex != UINT16_MAX || between(c, 0xAC00, 0xD7A3);  // Hangul syllables
}

// Composes according to UAX 15: a character joins the last starter unless a character of the same or a higher class is
// between them.
std::vector<NormalizedCharacter> compose(const std::vector<NormalizedCharacter>& text) {
  std::vector<NormalizedCharacter> out;
  std::ptrdiff_t starter = -1;
  int last = -1;  // combining class of the last character kept since the starter; -1 if there is none
  for (const NormalizedCharacter& c : text) {
    const int own = combining_class(c.character);
    if (starter >= 0 && (last < own || last < 0)) {
      NormalizedCharacter& base = out[static_cast<std::size_t>(starter)];
      if (const char32_t both = composed(base.character, c.character)) {
        base = {both, base.change + c.change - 1};
        continue;
      }
    }
    if (own == 0) starter = static_cast<std::ptrdiff_t>(out.size());
    last = own == 0 ? -1 : own;
    out.push_back(c);
  }
  return out;
}

struct Title {
  char32_t character;
  std::array<char32_t, 3> title;
};
// Characters whose title case consists of several characters, from Unicode's SpecialCasing.txt; unchanged since version
// 3.2.
constexpr std::array kTitles = std::to_array<Title>({{0xDF, {0x53, 0x73}},
                                                     {0x149, {0x2BC, 0x4E}},
                                                     {0x1F0, {0x4A, 0x30C}},
                                                     {0x390, {0x399, 0x308, 0x301}},
                                                     {0x3B0, {0x3A5, 0x308, 0x301}},
                                                     {0x587, {0x535, 0x582}},
                                                     {0x1E96, {0x48, 0x331}},
                                                     {0x1E97, {0x54, 0x308}},
                                                     {0x1E98, {0x57, 0x30A}},
                                                     {0x1E99, {0x59, 0x30A}},
                                                     {0x1E9A, {0x41, 0x2BE}},
                                                     {0x1F50, {0x3A5, 0x313}},
                                                     {0x1F52, {0x3A5, 0x313, 0x300}},
                                                     {0x1F54, {0x3A5, 0x313, 0x301}},
                                                     {0x1F56, {0x3A5, 0x313, 0x342}},
                                                     {0x1FB2, {0x1FBA, 0x345}},
                                                     {0x1FB4, {0x386, 0x345}},
                                                     {0x1FB6, {0x391, 0x342}},
                                                     {0x1FB7, {0x391, 0x342, 0x345}},
                                                     {0x1FC2, {0x1FCA, 0x345}},
                                                     {0x1FC4, {0x389, 0x345}},
                                                     {0x1FC6, {0x397, 0x342}},
                                                     {0x1FC7, {0x397, 0x342, 0x345}},
                                                     {0x1FD2, {0x399, 0x308, 0x300}},
                                                     {0x1FD3, {0x399, 0x308, 0x301}},
                                                     {0x1FD6, {0x399, 0x342}},
                                                     {0x1FD7, {0x399, 0x308, 0x342}},
                                                     {0x1FE2, {0x3A5, 0x308, 0x300}},
                                                     {0x1FE3, {0x3A5, 0x308, 0x301}},
                                                     {0x1FE4, {0x3A1, 0x313}},
                                                     {0x1FE6, {0x3A5, 0x342}},
                                                     {0x1FE7, {0x3A5, 0x308, 0x342}},
                                                     {0x1FF2, {0x1FFA, 0x345}},
                                                     {0x1FF4, {0x38F, 0x345}},
                                                     {0x1FF6, {0x3A9, 0x342}},
                                                     {0x1FF7, {0x3A9, 0x342, 0x345}},
                                                     {0xFB00, {0x46, 0x66}},
                                                     {0xFB01, {0x46, 0x69}},
                                                     {0xFB02, {0x46, 0x6C}},
                                                     {0xFB03, {0x46, 0x66, 0x69}},
                                                     {0xFB04, {0x46, 0x66, 0x6C}},
                                                     {0xFB05, {0x53, 0x74}},
                                                     {0xFB06, {0x53, 0x74}},
                                                     {0xFB13, {0x544, 0x576}},
                                                     {0xFB14, {0x544, 0x565}},
                                                     {0xFB15, {0x544, 0x56B}},
                                                     {0xFB16, {0x54E, 0x576}},
                                                     {0xFB17, {0x544, 0x56D}}});

std::u32string title(char32_t c) {
  const auto found = std::ranges::find(kTitles, c, &Title::character);
  if (found == kTitles.end()) return {static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)))};
  std::u32string out(found->title.begin(), found->title.end());
  out.resize(std::min(out.size(), out.find(U'\0')));
  return out;
}

bool is_cased(char32_t c) { return category(c) >= Category::lu && category(c) <= Category::lt; }
// Returns true for characters with the property Case_Ignorable: marks, modifiers, formats, and punctuation within
// words.
bool is_passed_over(char32_t c) {
  const Category k = category(c);
  return k == Category::mn || k == Category::me || k == Category::cf || k == Category::lm || k == Category::sk ||
         std::u32string_view(U"'.:\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027").find(c) !=
             std::u32string_view::npos;
}

// Returns true if a capital sigma at `at` ends a word: there is a cased character before it and none after it.
bool ends_word(const std::u32string& text, std::size_t at) {
  std::size_t before = at, behind = at + 1;
  while (before > 0 && is_passed_over(text[before - 1])) --before;
  while (behind < text.size() && is_passed_over(text[behind])) ++behind;
  return before > 0 && is_cased(text[before - 1]) && !(behind < text.size() && is_cased(text[behind]));
}

#else

[[noreturn]] void missing() {
  fail("this program was built without utf8proc, which a tokenizer.json needs for its Unicode rules: install ",
       "libutf8proc-dev and build again");
}

#endif

}  // namespace

const Traits& Traits::all() {
  static const Traits traits;
  return traits;
}

namespace {

template <Form form>
const Normalization& made(const auto& make) {
  static const Normalization normalization = make(form);
  return normalization;
}

}  // namespace

const Normalization& Normalization::of_form(Form form) {
  const auto make = [](Form f) { return Normalization(f); };
  switch (form) {
    case Form::nfc: return made<Form::nfc>(make);
    case Form::nfd: return made<Form::nfd>(make);
    case Form::nfkc: return made<Form::nfkc>(make);
    case Form::nfkd: break;
  }
  return made<Form::nfkd>(make);
}

#ifdef RING_WITH_UTF8PROC

Traits::Traits() : table_(kCodePoints) {
  for (char32_t c = 0; c < kCodePoints; ++c) table_[c] = is_surrogate(c) ? 0 : traits_of(c);
}

Normalization::Normalization(Form form)
    : composes_(form == Form::nfc || form == Form::nfkc),
      compatible_(form == Form::nfkc || form == Form::nfkd),
      unstable_(kCodePoints) {
  for (char32_t c = 0; c < kCodePoints; ++c) {
    if (!may_change(c)) continue;
    const Decomposed canonical = decomposed(c, false);
    // A character that is not the first one of a decomposition may combine with the character before it.
    if (composes_)
      for (std::size_t i = 1; i < canonical.size(); ++i) unstable_[canonical[i]] = true;
    const std::vector<NormalizedCharacter> alone = normalized({c});
    if (combining_class(c) != 0 || alone.size() != 1 || alone[0].character != c) unstable_[c] = true;
  }
}

std::vector<NormalizedCharacter> Normalization::normalized(const std::vector<char32_t>& stretch) const {
  std::vector<NormalizedCharacter> text;
  for (const char32_t c : stretch) {
    const std::size_t first = text.size();
    for (const char32_t part : decomposed(c, compatible_)) text.push_back({part, text.size() > first});
  }
  reorder(text);
  return composes_ ? compose(text) : text;
}

std::string capitalized(std::string_view text) {
  std::u32string from;
  for (std::size_t at = 0, n; at < text.size(); at += n) {
    n = utf8::valid_length(text.substr(at));
    if (n == 0) return std::string(text);  // the text is not valid UTF-8
    from += utf8::decode(text.substr(at), n);
  }
  constexpr char32_t kSigma = 0x3A3, kFinalSigma = 0x3C2;
  std::u32string to;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (i > 0 && from[i] == kSigma && ends_word(from, i))
      to += kFinalSigma;
    else
      to += i == 0 ? title(from[i]) : lower(from[i]);
  }
  std::string out;
  for (const char32_t c : to) utf8::append(out, c);
  return out;
}

std::string normal_forms_version() { return utf8proc_unicode_version(); }

std::u32string lower(char32_t c) {
  if (c == 0x130) return {U'i', 0x307};
  return {static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)))};
}

#else

Traits::Traits() { missing(); }
std::string normal_forms_version() { return ""; }
Normalization::Normalization(Form) { missing(); }
std::vector<NormalizedCharacter> Normalization::normalized(const std::vector<char32_t>&) const { missing(); }
std::u32string lower(char32_t) { missing(); }
std::string capitalized(std::string_view text) {
  std::string out(text);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (static_cast<unsigned char>(out[i]) >= 0x80) missing();
    const bool changes = i == 0 ? out[i] >= 'a' && out[i] <= 'z' : out[i] >= 'A' && out[i] <= 'Z';
    if (changes) out[i] = static_cast<char>(out[i] ^ ('a' - 'A'));
  }
  return out;
}

#endif

}  // namespace ring::unicode
