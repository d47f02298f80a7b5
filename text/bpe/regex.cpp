#include "text/bpe/regex.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>

#include "core/check.h"
#include "text/unicode/categories.h"
#include "text/utf8.h"

#ifdef RING_WITH_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace ring::bpe {

#ifdef RING_WITH_PCRE2
namespace {

// Unicode's White_Space. PCRE2's own \s also contains U+180E.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

pcre2_code* compiled(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE place = 0;
  const std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &place, nullptr);
  if (!code) fail("not a valid pattern: ", message_of(error), " at byte ", place);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // optional, only for speed
  return code;
}

// Finds successive matches, like Oniguruma's find_iter: an empty match directly after another match is skipped.
class Search {
 public:
  Search(const pcre2_code* code, std::string_view text)
      : code_(code), text_(text), data_(pcre2_match_data_create(1, nullptr), pcre2_match_data_free) {}

  std::optional<Match> next() {
    while (at_ <= text_.size()) {
      const int found =
          pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), at_, 0, data_.get(), nullptr);
      if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
      if (found < 0) fail("PCRE2 cannot match a text of ", text_.size(), " bytes: ", message_of(found));
      const PCRE2_SIZE* place = pcre2_get_ovector_pointer(data_.get());
      const Match m{place[0], place[1]};
      if (m.begin != m.end || m.end != last_) {
        at_ = last_ = m.end;
        return m;
      }
      const std::size_t n = at_ < text_.size() ? utf8::valid_length(text_.substr(at_)) : 1;
      at_ += n ? n : 1;
    }
    return std::nullopt;
  }

 private:
  const pcre2_code* code_;
  std::string_view text_;
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data_;
  std::size_t at_ = 0, last_ = std::string_view::npos;
};

using Ranges = std::vector<unicode::CharacterRange>;

std::string text_of(const Ranges& ranges) {
  std::string text;
  for (const auto& [first, last] : ranges) {
    std::array<char, 48> range{};
    std::snprintf(range.data(), range.size(), R"(\x{%X}-\x{%X})", static_cast<unsigned>(first),
                  static_cast<unsigned>(last));
    text += range.data();
  }
  return text;
}

// Returns the complement of the ranges, without surrogates.
Ranges others(const Ranges& ranges) {
  Ranges all;
  const auto add = [&](char32_t first, char32_t end) {
    if (first < end) all.push_back({first, end - 1});
  };
  char32_t next = 0;
  const auto add_without_surrogates = [&](char32_t end) {
    add(next, std::min<char32_t>(end, 0xD800));
    add(std::max<char32_t>(next, 0xE000), end);
  };
  for (const auto& [first, last] : ranges) {
    add_without_surrogates(first);
    next = last + 1;
  }
  add_without_surrogates(unicode::kCodePoints);
  return all;
}

// Returns the intersection of the ranges.
Ranges both(const Ranges& a, const Ranges& b) {
  Ranges all;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const char32_t first = std::max(a[i].first, b[j].first), last = std::min(a[i].last, b[j].last);
    if (first <= last) all.push_back({first, last});
    a[i].last < b[j].last ? ++i : ++j;
  }
  return all;
}

// Returns the characters that PCRE2 matches with \p{name}.
Ranges known_to_pcre2(const std::string& name) {
  std::string text;
  for (char32_t c = 0; c < unicode::kCodePoints; ++c)
    if (c < 0xD800 || c >= 0xE000) utf8::append(text, c);
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(compiled(R"(\p{)" + name + "}"), pcre2_code_free);
  Ranges ranges;
  Search search(code.get(), text);
  while (const auto m = search.next()) {
    const char32_t c = utf8::decode(std::string_view(text).substr(m->begin), m->end - m->begin);
    if (ranges.empty() || ranges.back().last + 1 != c) ranges.push_back({c, c});
    ranges.back().last = c;
  }
  return ranges;
}

// The characters of a category, and all others, as items of a PCRE2 character class.
struct Members {
  std::string items, other_items;
};

// Returns PCRE2's own category, which matches fast, plus ranges of the characters that a later Unicode version added.
// If PCRE2's category has characters that Unicode's category lacks, returns only ranges.
Members found_members(const std::string& name) {
  const Ranges wanted = both(unicode::characters_of(name), others({})), known = known_to_pcre2(name);
  const Ranges missing = both(wanted, others(known)), surplus = both(known, others(wanted));
  return {surplus.empty() ? str(R"(\p{)", name, "}", text_of(missing)) : text_of(wanted), text_of(others(wanted))};
}

// Returns the members of a category; null if there is no such category, or if it is a script other than Han.
const Members* members_of(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, Members> all;
  const std::lock_guard lock(mutex);
  if (const auto found = all.find(name); found != all.end()) return &found->second;
  if (unicode::characters_of(name).empty()) return nullptr;
  return &all.emplace(name, found_members(name)).first->second;
}

// Translates a pattern from Oniguruma to PCRE2: rewrites or rejects syntax that differs.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern) {}

  std::string translated() {
    while (!rest_.empty()) {
      if (rest_[0] == '\\')
        escape();
      else if (in_class_)
        class_character();
      else
        character();
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail("'", what, "' in a pattern has a different meaning in PCRE2, which this program uses for matching");
  }
  // Writes a character class or, if the pattern is already inside a class, only the items. other_items: items of the
  // complement, which a negated class inside a class needs.
  void put(const std::string& items, const std::string& other_items, bool negated) {
    if (in_class_)
      out_ += negated ? other_items : items;
    else
      out_ += str(negated ? "[^" : "[", items, "]");
  }
  // Translates \p{L}, \P{L}, \p{^L} or \pL at the front of the text; returns false unless the category is known.
  bool property() {
    const bool braces = rest_.size() > 2 && rest_[2] == '{';
    const std::size_t end = braces ? rest_.find('}') : 2;
    if (end >= rest_.size()) return false;
    std::string_view name = rest_.substr(braces ? 3 : 2, braces ? end - 3 : 1);
    const bool hat = name.starts_with('^');
    name.remove_prefix(hat);
    const Members* members = members_of(std::string(name));
    if (!members) return false;
    put(members->items, members->other_items, (rest_[1] == 'P') != hat);
    rest_.remove_prefix(end + 1);
    return true;
  }
  void take(std::size_t n) {
    out_ += rest_.substr(0, n);
    rest_.remove_prefix(n);
  }

  void escape() {
    if (rest_.size() < 2) fail("the pattern ends with a backslash");
    const std::string_view both = rest_.substr(0, 2);
    if (both == R"(\s)" || (both == R"(\S)" && !in_class_)) {
      out_ += in_class_ ? std::string(kSpaces) : str(both[1] == 's' ? "[" : "[^", kSpaces, "]");
      rest_.remove_prefix(2);
      return;
    }
    if (both == R"(\d)" || both == R"(\D)") {
      const Members* digits = members_of("Nd");
      put(digits->items, digits->other_items, both[1] == 'D');
      return rest_.remove_prefix(2);
    }
    if ((both[1] == 'p' || both[1] == 'P') && property()) return;
    constexpr std::string_view kDiffering = "SwWbBhHRXKkgzZAGQEoNOyYcCM";
    if (kDiffering.find(both[1]) != std::string_view::npos) refuse(both);
    const bool braces = rest_.size() > 2 && rest_[2] == '{' && (both[1] == 'p' || both[1] == 'P' || both[1] == 'x');
    take(braces ? std::min(rest_.find('}'), rest_.size() - 1) + 1 : 2);
  }

  void class_character() {
    if (rest_[0] == '[') refuse("[ within [...]");
    if (rest_.starts_with("&&")) refuse("&&");
    if (rest_[0] == ']') in_class_ = false;
    take(1);
  }

  void character() {
    if (rest_[0] == '^' || rest_[0] == '$') refuse(rest_.substr(0, 1));
    if (rest_[0] == '[') {
      in_class_ = true;
      return take(rest_.starts_with("[^") ? 2 : 1);
    }
    // In Oniguruma, {1,3}+ repeats the repetition; in PCRE2, it is a possessive repetition.
    if (rest_.starts_with("}+")) refuse("}+");
    if (rest_.starts_with("(?") && rest_.find_first_of("mx") < rest_.find_first_of(":)")) refuse(rest_.substr(0, 4));
    take(1);
  }

  std::string_view rest_;
  std::string out_;
  bool in_class_ = false;
};

}  // namespace

Regex::Regex(const std::string& pattern)
    : code_(compiled(Translator(pattern).translated()),
            [](const void* code) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(code))); }) {}

std::vector<Match> Regex::find(std::string_view text) const {
  std::vector<Match> all;
  Search search(static_cast<const pcre2_code*>(code_.get()), text);
  while (const auto m = search.next()) all.push_back(*m);
  return all;
}

#else

Regex::Regex(const std::string&) {
  fail("this pattern needs PCRE2, which this program was built without: install libpcre2-dev and build again");
}
std::vector<Match> Regex::find(std::string_view) const { return {}; }

#endif

}  // namespace ring::bpe
