#include <algorithm>
#include <array>

#include "core/yaml.h"
#include "text/chat/parser.h"

namespace ring::chat {
namespace {

constexpr std::array<std::string_view, 10> kRefused{"raw",     "call",  "filter", "include", "import",
                                                    "extends", "block", "from",   "with",    "autoescape"};

class StatementParser : ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  NodePtr all() {
    NodePtr n = body({});
    if (!is(TokenKind::end)) wrong("'", ring::shown(now().text), "' has no matching opening tag");
    return n;
  }

 private:
  // Parses statements up to the end of the template, or up to a tag whose name is one of `ends`; this name is then the
  // next token.
  NodePtr body(std::initializer_list<std::string_view> ends) {
    NodePtr n = make_node(NodeKind::block);
    if (++nesting_ > 50) wrong("blocks are nested more than 50 times");
    while (!is(TokenKind::end)) {
      if (is(TokenKind::text)) {
        NodePtr text = make_node(NodeKind::text);
        text->text = take().text;
        n = add_part(std::move(n), std::move(text));
      } else if (is(TokenKind::print_begin)) {
        take();
        n = add_part(std::move(n), add_part(make_node(NodeKind::print), parse_expression_or_tuple()));
        need(TokenKind::print_end);
      } else {
        take();  // skips {%
        if (is(TokenKind::name) && std::ranges::find(ends, now().text) != ends.end()) break;
        n = add_part(std::move(n), statement());
      }
    }
    if (ends.size() > 0 && is(TokenKind::end))
      wrong("expected {% ", *(ends.end() - 1), " %}, got the end of the template");
    --nesting_;
    return n;
  }

  void need(TokenKind kind) {
    if (!is(kind)) wrong("expected the end of the tag, got ", shown());
    take();
  }
  void end_of(std::string_view name) {
    if (!take_name(name)) wrong("expected {% ", name, " %}, got ", shown());
    need(TokenKind::block_end);
  }

  NodePtr statement() {
    const std::string name = expect_name("the name of a statement");
    if (name == "if") return branch();
    if (name == "for") return loop();
    if (name == "set") return assign();
    if (name == "macro") return macro();
    if (name == "generation") return generation();
    if (name == "break" || name == "continue") return jump(name);
    if (std::ranges::find(kRefused, name) != kRefused.end())
      wrong("the statement {% ", ring::shown(name), " %} is not supported");
    wrong("{% ", ring::shown(name), " %} is not a statement, or has no matching opening tag");
  }

  NodePtr branch() {
    NodePtr n = make_node(NodeKind::branch);
    while (true) {
      n = add_part(std::move(n), parse_expression());
      need(TokenKind::block_end);
      n = add_part(std::move(n), body({"elif", "else", "endif"}));
      if (take_name("elif")) continue;
      if (take_name("else")) {
        need(TokenKind::block_end);
        n = add_part(std::move(n), body({"endif"}));
      }
      end_of("endif");
      return n;
    }
  }

  NodePtr loop() {
    NodePtr n = make_node(NodeKind::loop);
    const bool brackets = take_symbol("(");
    do n->names.push_back(expect_name("the name of a loop's variable"));
    while (take_symbol(","));
    if (brackets) expect_symbol(")");
    if (!take_name("in")) wrong("expected 'in', got ", shown());
    n = add_part(std::move(n), simple());
    n = add_part(std::move(n), take_name("if") ? parse_expression() : nullptr);
    if (is(TokenKind::name, "recursive")) wrong("a 'recursive' loop is not supported");
    need(TokenKind::block_end);
    ++loops_;
    n = add_part(std::move(n), body({"else", "endfor"}));
    --loops_;
    NodePtr none;
    if (take_name("else")) {
      need(TokenKind::block_end);
      none = body({"endfor"});
    }
    n = add_part(std::move(n), std::move(none));
    end_of("endfor");
    return n;
  }

  NodePtr assign() {
    NodePtr n = make_node(NodeKind::assign);
    n->names.push_back(expect_name("the name of a variable"));
    if (take_symbol(".")) {
      n->text = n->names[0];
      n->names[0] = expect_name("the name of a member");
    }
    while (take_symbol(",")) n->names.push_back(expect_name("the name of a variable"));
    if (take_symbol("=")) {
      n = add_part(std::move(n), parse_expression_or_tuple());
      need(TokenKind::block_end);
      return n;
    }
    if (is(TokenKind::symbol, "|")) wrong("{% set %} with a filter is not supported");
    if (n->names.size() > 1 || !n->text.empty()) wrong("expected '=', got ", shown());
    need(TokenKind::block_end);
    n->kind = NodeKind::capture;
    ++hidden_;
    n = add_part(std::move(n), body({"endset"}));
    --hidden_;
    end_of("endset");
    return n;
  }

  NodePtr macro() {
    NodePtr n = make_node(NodeKind::macro, expect_name("the name of a macro"));
    expect_symbol("(");
    while (!is(TokenKind::symbol, ")")) {
      n->names.push_back(expect_name("the name of a parameter"));
      n = add_part(std::move(n), take_symbol("=") ? parse_expression() : nullptr);
      if (!take_symbol(",")) break;
    }
    expect_symbol(")");
    need(TokenKind::block_end);
    ++hidden_;
    const int loops = std::exchange(loops_, 0);
    n = add_part(std::move(n), body({"endmacro"}));
    loops_ = loops;
    --hidden_;
    end_of("endmacro");
    return n;
  }

  NodePtr generation() {
    NodePtr n = make_node(NodeKind::generation);
    if (hidden_ > 0) wrong("{% generation %} inside a macro or a {% set %} block is not supported");
    need(TokenKind::block_end);
    ++hidden_;
    n = add_part(std::move(n), body({"endgeneration"}));
    --hidden_;
    end_of("endgeneration");
    return n;
  }

  NodePtr jump(const std::string& name) {
    if (loops_ == 0) wrong("{% ", name, " %} is outside a loop");
    NodePtr n = make_node(name == "break" ? NodeKind::leave : NodeKind::next);
    need(TokenKind::block_end);
    return n;
  }

  // Numbers of open blocks, of open loops, and of open blocks that cannot contain {% generation %}.
  int nesting_ = 0, loops_ = 0, hidden_ = 0;
};

}  // namespace

NodePtr parse(std::string_view source) { return StatementParser(lex(source)).all(); }

}  // namespace ring::chat
