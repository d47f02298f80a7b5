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

  // messages: a list of objects with a role and a content: a text, or a list of {"type": "text", "text": ..}, whose
  // texts are joined where the template does not read such lists; null, or missing, beside tool_calls. tools: what the
  // template gets under that name, or null. What counts is what lies in {% generation %}, where the template has it.
  // Else each assistant's turn is found by writing the conversation up to it, with the prompt that asks for an answer,
  // and up to its end: what the second has more counts, but for blank space behind the mark that ends the turn. Error:
  // no list of messages; no assistant among them; both of these are not the beginning of the whole; or see
  // Template::render().
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
  struct Whole {  // of a conversation
    std::vector<Value> messages;
    Rendered rendered;
  };
  // Returns the messages as values. Throws Error if one has no role or content, or what the template cannot write.
  std::vector<Value> read(const nlohmann::ordered_json& messages) const;
  // Writes all messages; `messages` are those of the list, as read() returns them. Arguments of calls that are the text
  // of a JSON object are read first if the template writes them as JSON, which would put the text in quotes.
  Whole write_whole(const nlohmann::ordered_json& list, std::vector<Value> messages, const Value& tools,
                    bool ask) const;
  bool find_reads_parts() const;
  Format format_;
  Template template_;
  Limits limits_;
  bool writes_calls_;  // the template has tool_calls
  bool reads_parts_;   // the template writes the texts of a content that is a list of parts
};

}  // namespace ring::chat
