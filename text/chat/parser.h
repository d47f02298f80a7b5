#pragma once
// Parser of chat template expressions, with the operator precedence of Jinja 3.1. The parser of statements derives from
// it.

#include <initializer_list>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "text/chat/lexer.h"
#include "text/chat/syntax.h"

namespace ring::chat {

using NodePtr = std::unique_ptr<Node>;

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  NodePtr parse_expression();              // parses an expression, including "a if b else c"
  NodePtr simple() { return parse_or(); }  // parses an expression that is not a conditional
  NodePtr parse_expression_or_tuple();

  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool is(TokenKind kind, std::string_view text = "") const {
    return now().kind == kind && (text.empty() || now().text == text);
  }
  bool take_symbol(std::string_view s) { return is(TokenKind::symbol, s) && (take(), true); }
  bool take_name(std::string_view s) { return is(TokenKind::name, s) && (take(), true); }
  void expect_symbol(std::string_view s);
  std::string expect_name(std::string_view what);
  std::string shown() const;  // returns the current token for error messages

  template <class... Parts>
  [[noreturn]] void wrong(const Parts&... parts) const {
    fail(now().line, ": ", parts...);
  }
  NodePtr make_node(NodeKind kind, std::string text = "") const;
  // Adds a part to a node. Throws Error if the tree becomes too deep.
  NodePtr add_part(NodePtr n, NodePtr part) const;

 private:
  friend class Nesting;
  NodePtr parse_or();
  NodePtr parse_and();
  NodePtr parse_not();
  NodePtr parse_comparison();
  NodePtr parse_sum();
  NodePtr parse_concatenation();
  NodePtr parse_product();
  NodePtr parse_power();
  NodePtr parse_unary(bool filters);
  NodePtr parse_primary();
  NodePtr parse_list(std::string_view end, NodeKind kind);
  NodePtr parse_dict();
  NodePtr parse_postfix(NodePtr of);
  NodePtr parse_subscript(NodePtr of);
  NodePtr parse_filters(NodePtr of);
  NodePtr parse_test(NodePtr of);
  NodePtr parse_arguments(NodePtr callee);
  template <class Next>
  NodePtr parse_binary(std::initializer_list<std::string_view> symbols, const Next& next);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace ring::chat
