#pragma once
// A chat template: the part of Jinja that published models use to write conversations, evaluated in bounded time and
// memory, without a clock. docs/adr/0026-masks-and-templates.md says what is in it.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/budget.h"
#include "text/chat/value.h"

namespace ring::chat {

struct Rendered {
  std::string text;
  std::vector<std::pair<std::size_t, std::size_t>> generations;  // bytes [begin, end) inside of {% generation %}
  std::size_t steps = 0;                                         // that are spent
};

class Template {
 public:
  // `name` says in errors which template it is. Error: it is no template, or has what is not supported, with the line.
  Template(const std::string& source, std::string name);
  ~Template();
  Template(Template&&) noexcept;

  bool marks_generation() const { return marks_; }  // it has {% generation %}
  // spent: steps of what shares the limit with this one. Error: what went wrong and the line, what the template
  // refuses, or a limit.
  Rendered render(std::vector<Member> variables, const Limits& limits = {}, std::size_t spent = 0) const;

 private:
  std::string name_;
  std::unique_ptr<Node> root_;
  bool marks_ = false;
};

}  // namespace ring::chat
