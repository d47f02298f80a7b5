#pragma once
// Lexer of chat templates. White space around tags is handled with the settings of transformers for Jinja: trim_blocks
// (removes the newline after a block tag) and lstrip_blocks (removes spaces before a tag that begins a line), in
// addition to '-' and '+' in tags.

#include <string>
#include <string_view>
#include <vector>

namespace ring::chat {

enum class TokenKind : unsigned char {
  text,         // text between tags
  print_begin,  // {{
  print_end,
  block_begin,  // {%
  block_end,
  name,
  string,  // text: the string's value, with escapes resolved
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

// Splits a template into tokens. Throws Error with the message "LINE: problem".
std::vector<Token> lex(std::string_view source);

}  // namespace ring::chat
