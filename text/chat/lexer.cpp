#include "text/chat/lexer.h"

#include <algorithm>
#include <array>

#include "core/check.h"
#include "text/chat/characters.h"

namespace ring::chat {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c); }

void append_character(std::string& out, unsigned c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  } else {
    out += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
            static_cast<char>(0x80 | (c & 63))};
  }
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t tag = next_tag();
      put_text(source_.substr(at_, tag - at_), tag);
      if (tag == source_.size()) break;
      move_to(tag);
      read_tag();
    }
    put(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void wrong(const Parts&... parts) const {
    fail(line_, ": ", parts...);
  }
  void put(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void move_to(std::size_t at) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    at_ = at;
  }
  bool starts(std::string_view what) const { return source_.substr(at_).starts_with(what); }
  char after(std::size_t n) const { return at_ + n < source_.size() ? source_[at_ + n] : '\0'; }

  std::size_t next_tag() const {
    for (std::size_t at = at_; (at = source_.find('{', at)) != std::string_view::npos; ++at)
      if (at + 1 < source_.size() && std::string_view("{%#").find(source_[at + 1]) != std::string_view::npos) return at;
    return source_.size();
  }

  // Adds a token for the text before the tag at `tag`, without the white space that the tag removes.
  void put_text(std::string_view text, std::size_t tag) {
    const char kind = tag < source_.size() ? source_[tag + 1] : '\0';
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (kind && sign == '-') {
      text = strip(text, false, true, nullptr);
    } else if ((kind == '%' || kind == '#') && sign != '+') {
      const std::size_t line = text.rfind('\n') + 1;  // 0 if there is no newline
      const bool begins = line > 0 || at_ == 0 || source_[at_ - 1] == '\n';
      if (begins && strip(text.substr(line), true, false, nullptr).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) put(TokenKind::text, std::string(text));
  }

  void read_tag() {
    const char kind = after(1);
    const bool sign = after(2) == '-' || after(2) == '+';
    if (kind == '#') {
      const std::size_t end = source_.find("#}", at_ + 2);
      if (end == std::string_view::npos) wrong("this comment has no end '#}'");
      const char last = end > at_ + 2 ? source_[end - 1] : '\0';
      move_to(end + 2);
      return close(last, true);
    }
    put(kind == '{' ? TokenKind::print_begin : TokenKind::block_begin, "");
    move_to(at_ + (sign ? 3 : 2));
    read_inside(kind == '{' ? "}}" : "%}");
  }

  // Called after a tag; `sign` is the '-' or '+' before the tag's end, if there is one.
  void close(char sign, bool block) {
    if (sign == '-')
      skip_blank();
    else if (block && sign != '+' && after(0) == '\n')
      move_to(at_ + 1);
  }

  void skip_blank() { move_to(source_.size() - strip(source_.substr(at_), true, false, nullptr).size()); }

  void read_inside(std::string_view end) {
    const bool block = end[0] == '%';
    std::string open;  // the brackets that are open
    while (true) {
      skip_blank();
      if (at_ == source_.size()) wrong("this tag has no end '", end, "'");
      const bool sign = (after(0) == '-' || (block && after(0) == '+')) && source_.substr(at_ + 1).starts_with(end);
      if (open.empty() && (sign || starts(end))) {
        const char last = sign ? after(0) : '\0';
        put(block ? TokenKind::block_end : TokenKind::print_end, "");
        move_to(at_ + (sign ? 3 : 2));
        return close(last, block);
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char c = after(0);
    if (c == '\'' || c == '"') return read_string(c);
    if (is_digit(c)) return read_number();
    if (is_name(c)) {
      std::size_t end = at_;
      while (end < source_.size() && is_name(source_[end])) ++end;
      put(TokenKind::name, std::string(source_.substr(at_, end - at_)));
      return move_to(end);
    }
    constexpr std::array<std::string_view, 8> pairs{"==", "!=", "<=", ">=", "//", "**"};
    for (const std::string_view pair : pairs)
      if (!pair.empty() && starts(pair)) {
        put(TokenKind::symbol, std::string(pair));
        return move_to(at_ + 2);
      }
    constexpr std::string_view opening = "([{", closing = ")]}";
    if (opening.find(c) != std::string_view::npos) open += closing[opening.find(c)];
    if (closing.find(c) != std::string_view::npos) {
      if (open.empty() || open.back() != c) wrong("'", c, "' has no matching opening bracket");
      open.pop_back();
    }
    if (std::string_view("+-*/%~<>=.,:|()[]{}").find(c) == std::string_view::npos)
      wrong("'", c, "' cannot be part of an expression");
    put(TokenKind::symbol, std::string(1, c));
    move_to(at_ + 1);
  }

  void read_number() {
    std::size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) ++end;
    };
    digits();
    const bool fraction = end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1]);
    if (fraction) ++end, digits();
    if (end < source_.size() && is_name(source_[end])) wrong("a number is followed by '", source_[end], "'");
    std::string text(source_.substr(at_, end - at_));
    std::erase(text, '_');
    put(fraction ? TokenKind::number : TokenKind::integer, text);
    move_to(end);
  }

  void read_string(char quote) {
    std::string text;
    std::size_t at = at_ + 1;
    for (; at < source_.size() && source_[at] != quote; ++at) {
      if (source_[at] != '\\')
        text += source_[at];
      else
        at = read_escape(at + 1, text) - 1;
    }
    if (at >= source_.size()) wrong("this string has no end");
    put(TokenKind::string, std::move(text));
    move_to(at + 1);
  }

  // Reads an escape like Python, except character names and characters above U+FFFF. Returns the position after the
  // escape.
  std::size_t read_escape(std::size_t at, std::string& text) const {
    if (at >= source_.size()) wrong("this string has no end");
    const char c = source_[at];
    constexpr std::string_view names = "ntrbfav\\'\"", meanings = "\n\t\r\b\f\a\v\\'\"";
    if (const std::size_t i = names.find(c); i != std::string_view::npos) {
      text += meanings[i];
      return at + 1;
    }
    if (c == '\n') return at + 1;
    if (c == 'N' || c == 'U' || is_digit(c)) wrong("the escape '\\", c, "' of a string is not supported");
    if (c != 'x' && c != 'u') {
      text += {'\\', c};
      return at + 1;
    }
    const std::size_t digits = c == 'x' ? 2 : 4;
    const std::string hex(source_.substr(at + 1, digits));
    if (hex.size() < digits || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
      wrong("the escape '\\", c, hex, "' of a string needs ", digits, " hexadecimal digits");
    const auto code = static_cast<unsigned>(std::stoul(hex, nullptr, 16));
    if (code >= 0xD800 && code < 0xE000) wrong("the escape '\\u", hex, "' of a string is half of a surrogate pair");
    append_character(text, code);
    return at + 1 + digits;
  }

  std::string_view source_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

// Like Jinja, converts all line ends to \n and removes the last one.
std::vector<Token> lex(std::string_view source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i)
    if (source[i] != '\r')
      text += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n')
      text += '\n';
  if (text.ends_with('\n')) text.pop_back();
  return Lexer(text).run();
}

}  // namespace ring::chat
