#pragma once
// The tree of a chat template.

#include <memory>
#include <string>
#include <vector>

#include "text/chat/value.h"

namespace ring::chat {

enum class NodeKind : unsigned char {
  // Expressions. What is in brackets are the parts, null where they may be missing.
  literal,      // value
  name,         // text
  list,         // [item..]
  dict,         // [name, value, name, value..]
  attribute,    // text of [of]
  item,         // [of, index]
  slice,        // [of, begin?, end?, step?]
  call,         // [callee, argument..]; the last arguments have `names`
  filter,       // text: [of, argument..], as call
  test,         // text: [of, argument..], as call
  negate,       // [of]
  binary,       // text: [left, right]
  both,         // [left, right]
  either,       // [left, right]
  inverse,      // [of]
  compare,      // [first, second..] with `names` between them
  conditional,  // [then, condition, else?]
  // Statements.
  block,       // [statement..]
  text,        // text
  print,       // [expression]
  branch,      // [condition, block].. and perhaps a block
  loop,        // names in [of, condition?, block, block for none?]
  assign,      // names = [expression], or text.names[0] of a namespace
  capture,     // names[0] = [block]
  macro,       // text(names): [default?.., block]
  generation,  // [block]: what an assistant says
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
  int depth = 1;  // 1 + that of the deepest part
};

// Error: "LINE: what is wrong", or what is not supported.
std::unique_ptr<Node> parse(std::string_view source);

}  // namespace ring::chat
