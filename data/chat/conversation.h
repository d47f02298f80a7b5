#pragma once
// Conversations as text for a model, and which of it the model is to learn: what assistants say, with the mark that
// ends their turn.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/chat/format.h"
#include "data/chat/template.h"

namespace ring::chat {

struct Part {
  std::string text;
  bool counts;  // as a target
};

class ConversationWriter {
 public:
  // `name` says in errors which template it is. limits: of what is done for one conversation, however often it is
  // written. Error: see Template.
  ConversationWriter(Format format, const std::string& name, const Limits& limits = {});
  const Format& format() const { return format_; }

  // messages: a list of objects with a role and a content. tools: what the template gets under that name, or null.
  // What counts is what lies in {% generation %}, where the template has it. Else each assistant's turn is found by
  // writing the conversation up to it, with the prompt that asks for an answer, and up to its end: what the second has
  // more counts, but for blank space behind the mark that ends the turn. Error: no list of messages; no assistant among
  // them; both of these are not the beginning of the whole; or see Template::render().
  std::vector<Part> parts(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools) const;
  // The conversation up to where an assistant answers, with the answers before cut out as parts() does it; in one part
  // where they cannot be told from the rest. look: gets the whole first, and may refuse it by an Error before answers
  // are looked for, which takes writing it about twice for each.
  std::vector<Part> prompt(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                           const std::function<void(const std::string&)>& look = nullptr) const;
  // What stands behind an answer, without blank space around it. Where nothing else does: what stands between an answer
  // and the user's next words, without blank space at its end. Empty: the template writes neither.
  std::string end_of_answer() const;

 private:
  using Spans = std::vector<std::pair<std::size_t, std::size_t>>;
  Rendered write(const std::vector<Value>& messages, std::size_t count, const Value& tools, bool ask,
                 std::size_t spent = 0) const;
  Spans turns(const std::vector<Value>& messages, const Value& tools, const Rendered& whole, bool asks) const;
  Format format_;
  Template template_;
  Limits limits_;
};

}  // namespace ring::chat
