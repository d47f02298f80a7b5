#include "text/bpe/patterns.h"

#include "text/bpe/unicode.h"
#include "text/utf8.h"

namespace ring::bpe {
namespace {

using unicode::kLetter;
using unicode::kNumber;
using unicode::kSpace;

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
// The only non-ASCII character whose lower case is one of the letters stmdrevl.
constexpr std::string_view kLongS = "\u017F";

bool ends_line(char c) { return c == '\n' || c == '\r'; }

// Cursor over the characters of a text.
class Scanner {
 public:
  Scanner(std::string_view text, std::size_t at) : text_(text), at_(at), traits_(&unicode::Traits::all()) {
    decode_next();
  }

  bool done() const { return at_ >= text_.size(); }
  std::size_t at() const { return at_; }
  char byte() const { return text_[at_]; }
  bool is(unsigned mask) const { return !done() && (trait_ & mask) != 0; }
  bool is_mark() const { return !done() && (trait_ & (kLetter | kNumber | kSpace)) == 0; }
  void next() {
    at_ += bytes_;
    decode_next();
  }
  std::size_t run(unsigned mask, std::size_t max = std::string_view::npos) {
    for (; max > 0 && is(mask); --max) next();
    return at_;
  }
  void marks() {
    while (is_mark()) next();
  }
  Scanner after() const {
    Scanner s = *this;
    s.next();
    return s;
  }

 private:
  void decode_next() {
    if (done()) return;
    const auto first = static_cast<unsigned char>(text_[at_]);
    if (first < 0x80) {
      bytes_ = 1;
      trait_ = traits_->of(first);
      return;
    }
    const std::string_view rest = text_.substr(at_);
    const std::size_t n = utf8::valid_length(rest);
    bytes_ = n ? n : 1;
    trait_ = n ? traits_->of(utf8::decode(rest, n)) : 0;
  }

  std::string_view text_;
  std::size_t at_, bytes_ = 1;
  const unicode::Traits* traits_;
  std::uint8_t trait_ = 0;
};

// Returns the length of 's, 't, 're, 've, 'm, 'll or 'd at the start of `rest`; 0 if there is none.
std::size_t contraction(std::string_view rest, bool any_case) {
  if (rest.size() < 2 || rest[0] != '\'') return 0;
  if (any_case && rest.substr(1).starts_with(kLongS)) return 1 + kLongS.size();
  const auto letter = [&](std::size_t i) {
    const char c = i < rest.size() ? rest[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char a = letter(1), b = letter(2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

// Matches \s+(?!\S)|\s+: the last white space before other text belongs to that text, unless there is only one.
std::size_t blank(Scanner s) {
  const std::size_t begin = s.at();
  std::size_t last = begin;
  for (; s.is(kSpace); s.next()) last = s.at();
  return s.done() || last == begin ? s.at() : last;
}

std::size_t gpt2(std::string_view text, std::size_t at) {
  if (const std::size_t n = contraction(text.substr(at), false)) return at + n;
  Scanner s(text, at);
  if (s.byte() == ' ' && !s.after().is(kSpace) && !s.after().done()) s.next();
  if (s.is(kLetter)) return s.run(kLetter);
  if (s.is(kNumber)) return s.run(kNumber);
  if (s.is(kSpace)) return blank(s);
  s.marks();
  return s.at();
}

// Matches \s*[\r\n]+; if that does not match, like blank().
std::size_t blank_with_lines(const Scanner& begin) {
  std::size_t line = 0;
  for (Scanner s = begin; s.is(kSpace); s.next())
    if (ends_line(s.byte())) line = s.at() + 1;
  return line ? line : blank(begin);
}

std::size_t llama3(std::string_view text, std::size_t at, std::size_t digits) {
  if (const std::size_t n = contraction(text.substr(at), true)) return at + n;
  Scanner s(text, at);
  if (s.is(kLetter)) return s.run(kLetter);
  if (s.is(kNumber)) return s.run(kNumber, digits);
  Scanner after = s.after();
  if (!ends_line(s.byte()) && after.is(kLetter)) return after.run(kLetter);
  if (s.byte() == ' ' && after.is_mark()) s = after;
  if (s.is(kSpace)) return blank_with_lines(s);
  s.marks();
  while (!s.done() && ends_line(s.byte())) s.next();
  return s.at();
}

}  // namespace

std::string_view regex_of(Pattern p) {
  switch (p) {
    case Pattern::gpt2: return kGpt2;
    case Pattern::llama3: return kLlama3;
    case Pattern::qwen2: return kQwen2;
  }
  return {};
}

std::optional<Pattern> pattern_of(std::string_view regex) {
  for (const Pattern p : {Pattern::gpt2, Pattern::llama3, Pattern::qwen2})
    if (regex == regex_of(p)) return p;
  return std::nullopt;
}

std::optional<Pattern> pattern_named(std::string_view name) {
  if (name == "gpt2") return Pattern::gpt2;
  if (name == "llama3") return Pattern::llama3;
  if (name == "qwen2") return Pattern::qwen2;
  return std::nullopt;
}

std::size_t piece_end(Pattern p, std::string_view text, std::size_t at) {
  return p == Pattern::gpt2 ? gpt2(text, at) : llama3(text, at, p == Pattern::llama3 ? 3 : 1);
}

}  // namespace ring::bpe
