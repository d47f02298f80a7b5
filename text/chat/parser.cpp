#include "text/chat/parser.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace ring::chat {
namespace {

constexpr int kDeepestTree = 100;  // maximum depth of the tree and of the parser's recursion

}  // namespace

// Scope of a nested bracket, unary operator or condition; limits the depth.
class Nesting {
 public:
  explicit Nesting(ExpressionParser& p) : p_(p) {
    if (++p_.nesting_ > kDeepestTree) p_.wrong("expressions are nested more than ", kDeepestTree, " times");
  }
  ~Nesting() { --p_.nesting_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  ExpressionParser& p_;
};

NodePtr ExpressionParser::make_node(NodeKind kind, std::string text) const {
  auto n = std::make_unique<Node>();
  n->kind = kind;
  n->line = now().line;
  n->text = std::move(text);
  return n;
}

NodePtr ExpressionParser::add_part(NodePtr n, NodePtr part) const {
  if (part) n->depth = std::max(n->depth, part->depth + 1);
  if (n->depth > kDeepestTree) wrong("expressions or blocks are nested more than ", kDeepestTree, " times");
  n->parts.push_back(std::move(part));
  return n;
}

std::string ExpressionParser::shown() const {
  switch (now().kind) {
    case TokenKind::text: return "text";
    case TokenKind::print_begin: return "'{{'";
    case TokenKind::print_end: return "'}}'";
    case TokenKind::block_begin: return "'{%'";
    case TokenKind::block_end: return "'%}'";
    case TokenKind::end: return "the end of the template";
    case TokenKind::string: return "the string '" + now().text.substr(0, 40) + "'";
    default: return "'" + now().text.substr(0, 40) + "'";
  }
}

void ExpressionParser::expect_symbol(std::string_view s) {
  if (!take_symbol(s)) wrong("expected '", s, "', got ", shown());
}

std::string ExpressionParser::expect_name(std::string_view what) {
  if (!is(TokenKind::name)) wrong("expected ", what, ", got ", shown());
  return take().text;
}

NodePtr ExpressionParser::parse_expression() {
  const Nesting deeper(*this);
  NodePtr then = parse_or();
  while (take_name("if")) {
    NodePtr n = make_node(NodeKind::conditional);
    n = add_part(std::move(n), std::move(then));
    n = add_part(std::move(n), parse_or());
    then = add_part(std::move(n), take_name("else") ? parse_expression() : nullptr);
  }
  return then;
}

NodePtr ExpressionParser::parse_expression_or_tuple() {
  NodePtr first = parse_expression();
  if (!is(TokenKind::symbol, ",")) return first;
  NodePtr tuple = add_part(make_node(NodeKind::list), std::move(first));
  while (take_symbol(",") && !is(TokenKind::block_end) && !is(TokenKind::print_end))
    tuple = add_part(std::move(tuple), parse_expression());
  return tuple;
}

NodePtr ExpressionParser::parse_or() {
  NodePtr left = parse_and();
  while (take_name("or")) left = add_part(add_part(make_node(NodeKind::either), std::move(left)), parse_and());
  return left;
}

NodePtr ExpressionParser::parse_and() {
  NodePtr left = parse_not();
  while (take_name("and")) left = add_part(add_part(make_node(NodeKind::both), std::move(left)), parse_not());
  return left;
}

NodePtr ExpressionParser::parse_not() {
  const Nesting deeper(*this);
  if (take_name("not")) return add_part(make_node(NodeKind::inverse), parse_not());
  return parse_comparison();
}

NodePtr ExpressionParser::parse_comparison() {
  constexpr std::array<std::string_view, 6> symbols{"==", "!=", "<", "<=", ">", ">="};
  NodePtr first = parse_sum(), all;
  while (true) {
    std::string op;
    if (is(TokenKind::symbol) && std::ranges::find(symbols, now().text) != symbols.end()) {
      op = take().text;
    } else if (take_name("in")) {
      op = "in";
    } else if (is(TokenKind::name, "not") && after().kind == TokenKind::name && after().text == "in") {
      take(), take();
      op = "not in";
    } else {
      return all ? std::move(all) : std::move(first);
    }
    if (!all) all = add_part(make_node(NodeKind::compare), std::move(first));
    all->names.push_back(op);
    all = add_part(std::move(all), parse_sum());
  }
}

template <class Next>
NodePtr ExpressionParser::parse_binary(std::initializer_list<std::string_view> symbols, const Next& next) {
  NodePtr left = next();
  while (is(TokenKind::symbol) && std::ranges::find(symbols, now().text) != symbols.end()) {
    NodePtr n = make_node(NodeKind::binary, take().text);
    left = add_part(add_part(std::move(n), std::move(left)), next());
  }
  return left;
}

NodePtr ExpressionParser::parse_sum() {
  return parse_binary({"+", "-"}, [this] { return parse_concatenation(); });
}
NodePtr ExpressionParser::parse_concatenation() {
  return parse_binary({"~"}, [this] { return parse_product(); });
}
NodePtr ExpressionParser::parse_product() {
  return parse_binary({"*", "/", "//", "%"}, [this] { return parse_power(); });
}
NodePtr ExpressionParser::parse_power() {
  NodePtr base = parse_unary(true);
  if (is(TokenKind::symbol, "**")) wrong("the operator '**' is not supported");
  return base;
}

NodePtr ExpressionParser::parse_unary(bool with_filters) {
  const Nesting deeper(*this);
  if (take_symbol("-")) {
    NodePtr n = add_part(make_node(NodeKind::negate), parse_unary(false));
    return with_filters ? parse_filters(std::move(n)) : std::move(n);
  }
  if (is(TokenKind::symbol, "+")) wrong("the sign '+' is not supported");
  NodePtr n = parse_postfix(parse_primary());
  return with_filters ? parse_filters(std::move(n)) : std::move(n);
}

NodePtr ExpressionParser::parse_primary() {
  NodePtr n = make_node(NodeKind::literal);
  const Token t = now();
  if (is(TokenKind::string)) {
    std::string all;
    while (is(TokenKind::string)) all += take().text;  // adjacent strings are concatenated
    n->value = Value(std::move(all));
  } else if (is(TokenKind::integer) || is(TokenKind::number)) {
    std::int64_t whole = 0;
    double number = 0;
    const char *begin = t.text.data(), *end = begin + t.text.size();
    const auto read = is(TokenKind::integer) ? std::from_chars(begin, end, whole) : std::from_chars(begin, end, number);
    if (read.ec != std::errc{}) wrong("the number ", t.text.substr(0, 40), " is too large");
    n->value = is(TokenKind::integer) ? Value(whole) : Value(number);
    take();
  } else if (is(TokenKind::name)) {
    const std::string& name = t.text;
    if (name == "true" || name == "True" || name == "false" || name == "False")
      n->value = Value(name == "true" || name == "True");
    else if (name == "none" || name == "None")
      n->value = Value(None{});
    else
      n = make_node(NodeKind::name, name);
    take();
  } else if (take_symbol("(")) {
    n = parse_list(")", NodeKind::list);
  } else if (take_symbol("[")) {
    n = parse_list("]", NodeKind::list);
  } else if (take_symbol("{")) {
    n = parse_dict();
  } else {
    wrong("expected an expression, got ", shown());
  }
  return n;
}

// Parses the items after an opening bracket. In parentheses, a single expression without a comma is returned as such,
// not as a tuple.
NodePtr ExpressionParser::parse_list(std::string_view end, NodeKind kind) {
  NodePtr n = make_node(kind);
  bool comma = false;
  while (!is(TokenKind::symbol, end)) {
    n = add_part(std::move(n), parse_expression());
    comma = take_symbol(",");
    if (!comma) break;
  }
  expect_symbol(end);
  if (end == ")" && n->parts.size() == 1 && !comma) return std::move(n->parts[0]);
  return n;
}

NodePtr ExpressionParser::parse_dict() {
  NodePtr n = make_node(NodeKind::dict);
  while (!is(TokenKind::symbol, "}")) {
    n = add_part(std::move(n), parse_expression());
    expect_symbol(":");
    n = add_part(std::move(n), parse_expression());
    if (!take_symbol(",")) break;
  }
  expect_symbol("}");
  return n;
}

NodePtr ExpressionParser::parse_postfix(NodePtr of) {
  while (true) {
    if (take_symbol(".")) {
      if (is(TokenKind::integer)) {
        NodePtr index = parse_primary();
        of = add_part(add_part(make_node(NodeKind::item), std::move(of)), std::move(index));
      } else {
        NodePtr n = make_node(NodeKind::attribute);
        n->text = expect_name("the name of a member");
        of = add_part(std::move(n), std::move(of));
      }
    } else if (take_symbol("[")) {
      of = parse_subscript(std::move(of));
    } else if (take_symbol("(")) {
      of = parse_arguments(add_part(make_node(NodeKind::call), std::move(of)));
    } else {
      return of;
    }
  }
}

NodePtr ExpressionParser::parse_subscript(NodePtr of) {
  std::vector<NodePtr> parts;
  bool slice = false;
  parts.push_back(is(TokenKind::symbol, ":") ? nullptr : parse_expression());
  while (parts.size() < 3 && take_symbol(":")) {
    slice = true;
    const bool none = is(TokenKind::symbol, ":") || is(TokenKind::symbol, "]");
    parts.push_back(none ? nullptr : parse_expression());
  }
  expect_symbol("]");
  NodePtr n = add_part(make_node(slice ? NodeKind::slice : NodeKind::item), std::move(of));
  while (slice && parts.size() < 3) parts.push_back(nullptr);
  for (NodePtr& p : parts) n = add_part(std::move(n), std::move(p));
  return n;
}

// Parses the arguments after an opening parenthesis and adds them to n.
NodePtr ExpressionParser::parse_arguments(NodePtr n) {
  while (!is(TokenKind::symbol, ")")) {
    if (is(TokenKind::symbol, "*") || is(TokenKind::symbol, "**")) wrong("arguments with '*' are not supported");
    const bool named = is(TokenKind::name) && after().kind == TokenKind::symbol && after().text == "=";
    if (named) {
      n->names.push_back(take().text);
      take();
    } else if (!n->names.empty()) {
      wrong("a positional argument follows a named one");
    }
    n = add_part(std::move(n), parse_expression());
    if (!take_symbol(",")) break;
  }
  expect_symbol(")");
  return n;
}

NodePtr ExpressionParser::parse_filters(NodePtr of) {
  while (true) {
    if (take_symbol("|")) {
      NodePtr n = make_node(NodeKind::filter);
      n->text = expect_name("the name of a filter");
      n = add_part(std::move(n), std::move(of));
      of = take_symbol("(") ? parse_arguments(std::move(n)) : std::move(n);
    } else if (take_name("is")) {
      of = parse_test(std::move(of));
    } else if (take_symbol("(")) {
      of = parse_arguments(add_part(make_node(NodeKind::call), std::move(of)));
    } else {
      return of;
    }
  }
}

NodePtr ExpressionParser::parse_test(NodePtr of) {
  const bool inverted = take_name("not");
  NodePtr n = make_node(NodeKind::test);
  n->text = expect_name("the name of a test");
  n = add_part(std::move(n), std::move(of));
  const auto begins_argument = [&] {
    if (is(TokenKind::name)) {
      constexpr std::array<std::string_view, 7> others{"else", "or", "and", "is", "if", "in", "not"};
      return std::ranges::find(others, now().text) == others.end();
    }
    const bool bracket = is(TokenKind::symbol, "[") || is(TokenKind::symbol, "{");
    return bracket || is(TokenKind::string) || is(TokenKind::integer) || is(TokenKind::number);
  };
  if (take_symbol("("))
    n = parse_arguments(std::move(n));
  else if (begins_argument())
    n = add_part(std::move(n), parse_postfix(parse_primary()));
  return inverted ? add_part(make_node(NodeKind::inverse), std::move(n)) : std::move(n);
}

}  // namespace ring::chat
