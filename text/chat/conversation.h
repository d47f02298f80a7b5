#pragma once
// Writes conversations as text with a chat template, and finds the text that the model is trained on: assistants'
// answers, with the text that ends their turn.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "text/chat/format.h"
#include "text/chat/template.h"

namespace ring::chat {

struct Part {
  std::string text;
  bool counts;  // true if the model is trained on the part
};

class ConversationWriter {
 public:
  // `name`: name of the template in error messages. `limits` apply to all renderings of one conversation together.
  // Throws Error like Template's constructor.
  ConversationWriter(Format format, const std::string& name, const Limits& limits = {});
  const Format& format() const { return format_; }

  // Returns the conversation as text, split into parts that count (the model is trained on them) and parts that do not.
  // messages: a list of objects with `role` and `content`. A content is a string or a list of {"type": "text", "text":
  // ..}. If the template does not read lists, the strings in a list are joined. With tool_calls, the content may be
  // null or missing.
  // given: an object with variables of the template for this conversation, e.g. tools; or null.
  // If the template has {% generation %}, the text inside it counts. Otherwise two texts are written for each
  // assistant's turn: A, up to the turn, with the prompt that asks for an answer, and B, including the turn. The
  // text that B has beyond the length of A counts, except white space after the text that ends the turn.
  // An assistant's message that is excluded from training (marks.h) does not count.
  // Throws Error if `messages` is not such a list or has no assistant, if the template would omit tools, tool calls,
  // reasoning or media that are present, if A or B is not the beginning of the whole conversation, or like
  // Template::render().
  std::vector<Part> parts(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& given) const;
  // Returns the conversation up to the point where an assistant answers. Earlier answers are parts that count, as in
  // parts(). If they cannot be found, returns the whole text as a part that does not count. The search for them writes
  // the conversation about twice for each answer. Before the search, calls on_rendered(text) with the whole text; it
  // may throw Error to refuse the text.
  std::vector<Part> prompt(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& given,
                           const std::function<void(const std::string&)>& on_rendered = nullptr) const;
  // Returns the text that the template writes after the last answer, without surrounding white space. If there is none,
  // returns the text between an answer and the user's next message, without trailing white space. May return "".
  std::string end_of_answer() const;

 private:
  using Spans = std::vector<std::pair<std::size_t, std::size_t>>;
  Rendered write(const std::vector<Value>& messages, std::size_t count, const std::vector<Member>& given, bool ask,
                 std::size_t spent = 0) const;
  Spans turns(const std::vector<Value>& messages, const std::vector<Member>& given, const Rendered& whole,
              bool asks) const;
  struct Whole {  // a whole conversation and its text
    std::vector<Value> messages;
    Rendered rendered;
  };
  // Returns the messages as values. Throws Error if a message has no role or content, or contains something that the
  // template cannot write.
  std::vector<Value> message_values(const nlohmann::ordered_json& messages) const;
  // Writes all messages. messages: the result of message_values(list). If a call's arguments are a string with a JSON
  // object inside, and the template would write that string as JSON, in quotes, the template gets the object instead.
  Whole write_whole(const nlohmann::ordered_json& list, std::vector<Value> messages, const std::vector<Member>& given,
                    bool ask) const;
  // Returns the spans of the messages that the model is trained on.
  Spans learned_spans(const nlohmann::ordered_json& list, const Spans&) const;
  std::vector<Member> checked_variables(const nlohmann::ordered_json& given) const;
  // Returns true if the template writes this text when it is a message's content, or a part of the content.
  bool writes_text(const nlohmann::ordered_json& content, std::string_view text) const;
  Format format_;
  Template template_;
  Limits limits_;
  // The forms of content that the template reads. Content in the other form is converted.
  bool reads_parts_ = false;  // lists of parts
  bool reads_strings_ = true;
};

}  // namespace ring::chat
