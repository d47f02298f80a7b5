#include "text/chat/parser.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace ring::chat {
namespace {

constexpr int kDeepest = 100;  // maximum depth of the tree and of the parser's recursion

}  // namespace

// Scope of a nested bracket, unary operator or condition; limits the depth.
class Nesting {
 public:
  explicit Nesting(ExpressionParser& p) : p_(p) {
    if (++p_.nesting_ > kDeepest) p_.wrong("expressions are nested more than ", kDeepest, " times");
  }
  ~Nesting() { --p_.nesting_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  ExpressionParser& p_;
};

NodePtr ExpressionParser::node(NodeKind kind, std::string text) const {
  auto n = std::make_unique<Node>();
  n->kind = kind;
  n->line = now().line;
  n->text = std::move(text);
  return n;
}

NodePtr ExpressionParser::with(NodePtr n, NodePtr part) const {
  if (part) n->depth = std::max(n->depth, part->depth + 1);
  if (n->depth > kDeepest) wrong("expressions or blocks are nested more than ", kDeepest, " times");
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

void ExpressionParser::need_symbol(std::string_view s) {
  if (!take_symbol(s)) wrong("expected '", s, "', got ", shown());
}

std::string ExpressionParser::need_name(std::string_view what) {
  if (!is(TokenKind::name)) wrong("expected ", what, ", got ", shown());
  return take().text;
}

NodePtr ExpressionParser::expression() {
  const Nesting deeper(*this);
  NodePtr then = either();
  while (take_name("if")) {
    NodePtr n = node(NodeKind::conditional);
    n = with(std::move(n), std::move(then));
    n = with(std::move(n), either());
    then = with(std::move(n), take_name("else") ? expression() : nullptr);
  }
  return then;
}

NodePtr ExpressionParser::expression_or_tuple() {
  NodePtr first = expression();
  if (!is(TokenKind::symbol, ",")) return first;
  NodePtr tuple = with(node(NodeKind::list), std::move(first));
  while (take_symbol(",") && !is(TokenKind::block_end) && !is(TokenKind::print_end))
    tuple = with(std::move(tuple), expression());
  return tuple;
}

NodePtr ExpressionParser::either() {
  NodePtr left = both();
  while (take_name("or")) left = with(with(node(NodeKind::either), std::move(left)), both());
  return left;
}

NodePtr ExpressionParser::both() {
  NodePtr left = inverse();
  while (take_name("and")) left = with(with(node(NodeKind::both), std::move(left)), inverse());
  return left;
}

NodePtr ExpressionParser::inverse() {
  const Nesting deeper(*this);
  if (take_name("not")) return with(node(NodeKind::inverse), inverse());
  return comparison();
}

NodePtr ExpressionParser::comparison() {
  constexpr std::array<std::string_view, 6> symbols{"==", "!=", "<", "<=", ">", ">="};
  NodePtr first = sum(), all;
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
    if (!all) all = with(node(NodeKind::compare), std::move(first));
    all->names.push_back(op);
    all = with(std::move(all), sum());
  }
}

template <class Next>
NodePtr ExpressionParser::chain(std::initializer_list<std::string_view> symbols, const Next& next) {
  NodePtr left = next();
  while (is(TokenKind::symbol) && std::ranges::find(symbols, now().text) != symbols.end()) {
    NodePtr n = node(NodeKind::binary, take().text);
    left = with(with(std::move(n), std::move(left)), next());
  }
  return left;
}

NodePtr ExpressionParser::sum() {
  return chain({"+", "-"}, [this] { return joined(); });
}
NodePtr ExpressionParser::joined() {
  return chain({"~"}, [this] { return product(); });
}
NodePtr ExpressionParser::product() {
  return chain({"*", "/", "//", "%"}, [this] { return power(); });
}
NodePtr ExpressionParser::power() {
  NodePtr base = unary(true);
  if (is(TokenKind::symbol, "**")) wrong("the operator '**' is not supported");
  return base;
}

NodePtr ExpressionParser::unary(bool with_filters) {
  const Nesting deeper(*this);
  if (take_symbol("-")) {
    NodePtr n = with(node(NodeKind::negate), unary(false));
    return with_filters ? filters(std::move(n)) : std::move(n);
  }
  if (is(TokenKind::symbol, "+")) wrong("the sign '+' is not supported");
  NodePtr n = postfix(primary());
  return with_filters ? filters(std::move(n)) : std::move(n);
}

NodePtr ExpressionParser::primary() {
  NodePtr n = node(NodeKind::literal);
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
      n = node(NodeKind::name, name);
    take();
  } else if (take_symbol("(")) {
    n = list_of(")", NodeKind::list);
  } else if (take_symbol("[")) {
    n = list_of("]", NodeKind::list);
  } else if (take_symbol("{")) {
    n = dict();
  } else {
    wrong("expected an expression, got ", shown());
  }
  return n;
}

// Parses the items after an opening bracket. In parentheses, a single expression without a comma is itself, not a
// tuple.
NodePtr ExpressionParser::list_of(std::string_view end, NodeKind kind) {
  NodePtr n = node(kind);
  bool comma = false;
  while (!is(TokenKind::symbol, end)) {
    n = with(std::move(n), expression());
    comma = take_symbol(",");
    if (!comma) break;
  }
  need_symbol(end);
  if (end == ")" && n->parts.size() == 1 && !comma) return std::move(n->parts[0]);
  return n;
}

NodePtr ExpressionParser::dict() {
  NodePtr n = node(NodeKind::dict);
  while (!is(TokenKind::symbol, "}")) {
    n = with(std::move(n), expression());
    need_symbol(":");
    n = with(std::move(n), expression());
    if (!take_symbol(",")) break;
  }
  need_symbol("}");
  return n;
}

NodePtr ExpressionParser::postfix(NodePtr of) {
  while (true) {
    if (take_symbol(".")) {
      if (is(TokenKind::integer)) {
        NodePtr index = primary();
        of = with(with(node(NodeKind::item), std::move(of)), std::move(index));
      } else {
        NodePtr n = node(NodeKind::attribute);
        n->text = need_name("the name of a member");
        of = with(std::move(n), std::move(of));
      }
    } else if (take_symbol("[")) {
      of = subscript(std::move(of));
    } else if (take_symbol("(")) {
      of = arguments(with(node(NodeKind::call), std::move(of)));
    } else {
      return of;
    }
  }
}

NodePtr ExpressionParser::subscript(NodePtr of) {
  std::vector<NodePtr> parts;
  bool slice = false;
  parts.push_back(is(TokenKind::symbol, ":") ? nullptr : expression());
  while (parts.size() < 3 && take_symbol(":")) {
    slice = true;
    const bool none = is(TokenKind::symbol, ":") || is(TokenKind::symbol, "]");
    parts.push_back(none ? nullptr : expression());
  }
  need_symbol("]");
  NodePtr n = with(node(slice ? NodeKind::slice : NodeKind::item), std::move(of));
  while (slice && parts.size() < 3) parts.push_back(nullptr);
  for (NodePtr& p : parts) n = with(std::move(n), std::move(p));
  return n;
}

// Parses the arguments after an opening parenthesis and adds them to n.
NodePtr ExpressionParser::arguments(NodePtr n) {
  while (!is(TokenKind::symbol, ")")) {
    if (is(TokenKind::symbol, "*") || is(TokenKind::symbol, "**")) wrong("arguments with '*' are not supported");
    const bool named = is(TokenKind::name) && after().kind == TokenKind::symbol && after().text == "=";
    if (named) {
      n->names.push_back(take().text);
      take();
    } else if (!n->names.empty()) {
      wrong("a positional argument follows a named one");
    }
    n = with(std::move(n), expression());
    if (!take_symbol(",")) break;
  }
  need_symbol(")");
  return n;
}

NodePtr ExpressionParser::filters(NodePtr of) {
  while (true) {
    if (take_symbol("|")) {
      NodePtr n = node(NodeKind::filter);
      n->text = need_name("the name of a filter");
      n = with(std::move(n), std::move(of));
      of = take_symbol("(") ? arguments(std::move(n)) : std::move(n);
    } else if (take_name("is")) {
      of = test(std::move(of));
    } else if (take_symbol("(")) {
      of = arguments(with(node(NodeKind::call), std::move(of)));
    } else {
      return of;
    }
  }
}

NodePtr ExpressionParser::test(NodePtr of) {
  const bool inverted = take_name("not");
  NodePtr n = node(NodeKind::test);
  n->text = need_name("the name of a test");
  n = with(std::move(n), std::move(of));
  const auto begins_argument = [&] {
    if (is(TokenKind::name)) {
      constexpr std::array<std::string_view, 7> others{"else", "or", "and", "is", "if", "in", "not"};
      return std::ranges::find(others, now().text) == others.end();
    }
    const bool bracket = is(TokenKind::symbol, "[") || is(TokenKind::symbol, "{");
    return bracket || is(TokenKind::string) || is(TokenKind::integer) || is(TokenKind::number);
  };
  if (take_symbol("("))
    n = arguments(std::move(n));
  else if (begins_argument())
    n = with(std::move(n), postfix(primary()));
  return inverted ? with(node(NodeKind::inverse), std::move(n)) : std::move(n);
}

}  // namespace ring::chat
