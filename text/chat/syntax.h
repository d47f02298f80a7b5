#pragma once
// Syntax tree of a chat template.

#include <memory>
#include <string>
#include <vector>

#include "text/chat/value.h"

namespace ring::chat {

enum class NodeKind : unsigned char {
  // Expressions. The comment names the fields used; [..] lists the parts, which are null if optional and missing.
  literal,      // value
  name,         // text
  list,         // [item..]
  dict,         // [name, value, name, value..]
  attribute,    // text of [of]
  item,         // [of, index]
  slice,        // [of, begin?, end?, step?]
  call,         // [callee, argument..]; `names` belong to the last arguments
  filter,       // text: [of, argument..], like call
  test,         // text: [of, argument..], like call
  negate,       // [of]
  binary,       // text: [left, right]
  both,         // [left, right]
  either,       // [left, right]
  inverse,      // [of]
  compare,      // [first, second..], with the operators between them in `names`
  conditional,  // [then, condition, else?]
  // Statements.
  block,       // [statement..]
  text,        // text
  print,       // [expression]
  branch,      // [condition, block].., optionally an else block
  loop,        // names in [of, condition?, block, else block?]
  assign,      // names = [expression], or text.names[0] = [expression] for a namespace
  capture,     // names[0] = [block]
  macro,       // text(names): [default?.., block]
  generation,  // [block]: text of an assistant
  leave,       // break
  next         // continue
};

struct Node {
  NodeKind kind;
  int line;
  std::string text;
  Value value;
  std::vector<std::unique_ptr<Node>> parts;
  std::vector<std::string> names;
  int depth = 1;  // 1 + depth of the deepest part
};

// Parses a template. Throws Error with the message "LINE: problem" if it is invalid or unsupported.
std::unique_ptr<Node> parse(std::string_view source);

}  // namespace ring::chat
