#pragma once
// A chat template: the subset of Jinja with which published models write conversations, evaluated in bounded time and
// memory, without access to a clock. docs/adr/0026-masks-and-templates.md lists the subset.

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
  // Bytes [begin, end) of the text inside {% generation %}.
  std::vector<std::pair<std::size_t, std::size_t>> generations;
  std::size_t steps = 0;  // number of steps used
};

class Template {
 public:
  // name: names the template in error messages. Throws Error, with the line, if the template is invalid or unsupported.
  Template(const std::string& source, std::string name);
  ~Template();
  Template(Template&&) noexcept;

  bool marks_generation() const { return marks_; }  // true if the template contains {% generation %}
  // Evaluates the template. spent_steps: steps already used under the same limits. Throws Error, with the line, if
  // evaluation fails, the template itself raises an error, or a limit is exceeded.
  Rendered render(std::vector<Member> variables, const Limits& limits = {}, std::size_t spent_steps = 0) const;

 private:
  std::string name_;
  std::unique_ptr<Node> root_;
  bool marks_ = false;
};

}  // namespace ring::chat
