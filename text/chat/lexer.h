#pragma once
// A chat template as tokens. Blank space around tags goes as transformers sets Jinja: trim_blocks (the newline behind a
// block tag) and lstrip_blocks (the blanks before one that begins a line), beside what '-' and '+' in a tag ask for.

#include <string>
#include <string_view>
#include <vector>

namespace ring::chat {

enum class TokenKind : unsigned char {
  text,         // between tags
  print_begin,  // {{
  print_end,
  block_begin,  // {%
  block_end,
  name,
  string,  // what it means, escapes resolved
  integer,
  number,
  symbol,
  end
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;
};

// Error: "LINE: what is wrong".
std::vector<Token> lex(std::string_view source);

}  // namespace ring::chat
