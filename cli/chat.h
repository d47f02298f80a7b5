#pragma once
// Talking with a model on a terminal, and options of what writes texts.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/command.h"
#include "evaluate/generate.h"
#include "evaluate/session.h"

namespace ring {

// --chat-template. Returns the option.
Option add_chat_template(Command, std::string& choice);

// --context of commands that write texts: see open_session().
void add_context(Command, std::int64_t& context);

struct ChatOptions {
  std::string chat_template;  // see open_chat()
  std::string system;         // what stands first; empty: nothing
  std::string once;           // one answer to this; empty: an answer to every line of standard input
};

// Prints answers, a line end behind each. Answer n, counted from 0, is drawn with the seed + n. Error: there is no
// template, or the conversation has outgrown the model's context.
void talk(const Session&, const ChatOptions&, Sampling, std::int64_t max_tokens, const std::vector<std::string>& stops);

}  // namespace ring
