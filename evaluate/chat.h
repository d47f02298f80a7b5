#pragma once
// Conversations with a model: builds a prompt's tokens as training would see them, and determines what ends an answer.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evaluate/generated_text.h"
#include "text/chat/conversation.h"
#include "text/tokenizer.h"

namespace ring {

struct Session;

struct ChatMessage {
  std::string role, content;  // role: as in the template, usually system, user or assistant
};

class Chat {
 public:
  // name: name of the template, for messages. ends: additional tokens that end an answer. Throws Error like
  // chat::Template.
  Chat(chat::Format, const std::string& name, std::shared_ptr<const Tokenizer>, std::vector<std::int32_t> ends = {});

  // Returns the conversation up to the point where the assistant answers, with the same tokens as in a corpus that
  // `data prepare` makes with this template. context: the model's context, in tokens. Throws Error if the template
  // refuses the conversation or writes nothing, or if the context has no space left for an answer.
  std::vector<std::int32_t> encode_prompt(const std::vector<ChatMessage>&, std::int64_t context) const;

  // Returns the endings of an answer: `stops`, and the token or string that the template writes after an answer. Blank
  // space around answers is stripped, because templates add their own there.
  TextEnding answer_ending(std::vector<std::string> stops) const;

 private:
  std::vector<std::int32_t> encode(const std::vector<chat::Part>&, bool first) const;

  chat::ConversationWriter writer_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::int32_t> ends_;
  std::optional<std::int32_t> end_token_;
  std::string end_;  // text that the template writes after an answer; empty if end_token_ stands for it
};

// Opens a chat with a session's model. choice selects the template (see load_chat_format()); by default it is the
// template stored with the model.
Chat open_chat(const Session&, const std::string& choice);

}  // namespace ring
