#pragma once
// Syntax tree of a chat template.

#include <memory>
#include <string>
#include <vector>

#include "text/chat/value.h"

namespace ring::chat {

enum class NodeKind : unsigned char {
  // Expressions. Each comment names the fields of Node that the kind uses; [..] is `parts`, `?` an optional part, null
  // if missing.
  literal,      // value
  name,         // text
  list,         // [item..]
  dict,         // [name, value, name, value..]
  attribute,    // [of]; text: the member's name
  item,         // [of, index]
  slice,        // [of, begin?, end?, step?]
  call,         // [callee, argument..]; `names` belong to the last arguments
  filter,       // [of, argument..], like call; text: the name
  test,         // [of, argument..], like call; text: the name
  negate,       // [of]
  binary,       // [left, right]; text: the operator
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
  loop,        // [of, condition?, block, else block?]; names: the loop's variables
  assign,      // [expression]; names: the variables or, if text names a namespace, the member
  capture,     // [block], whose text is assigned to names[0]
  macro,       // [default?.., block]; text: the macro's name; names: the parameters
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
