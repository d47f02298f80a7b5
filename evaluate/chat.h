#pragma once
// Conversations with a model: what has been said as the tokens that its training would see, and what ends its answer.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evaluate/written_text.h"
#include "text/chat/conversation.h"
#include "text/tokenizer.h"

namespace ring {

struct Session;

struct ChatMessage {
  std::string role, content;  // role: as the template knows it; system, user and assistant as a rule
};

class Chat {
 public:
  // `name` says in errors which template it is. ends: tokens that end an answer too. Error: see chat::Template.
  Chat(chat::Format, const std::string& name, std::shared_ptr<const Tokenizer>, std::vector<std::int32_t> ends = {});

  // The conversation up to where the assistant answers: the tokens that stand before the answer in a corpus that `data
  // prepare` makes with this template. context: the model's, in tokens. Error: the template refuses the conversation or
  // writes nothing, or the context has no room for an answer.
  std::vector<std::int32_t> prompt(const std::vector<ChatMessage>&, std::int64_t context) const;

  // What ends an answer besides these strings: the mark that the template writes behind it, a token or another string.
  // Answers have no blank space around them, as templates write some of their own there.
  TextEnding ending(std::vector<std::string> stops) const;

 private:
  std::vector<std::int32_t> encode(const std::vector<chat::Part>&, bool first) const;

  chat::ConversationWriter writer_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::int32_t> ends_;
  std::optional<std::int32_t> end_token_;
  std::string end_;  // where it is no token; empty: there is none
};

// With the model of a session, by the template that is kept with it, or as choice says (see load_chat_format()).
Chat open_chat(const Session&, const std::string& choice);

}  // namespace ring
