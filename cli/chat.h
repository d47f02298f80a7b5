#pragma once
// Chats on a terminal, and the options of commands that generate text.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/command.h"
#include "evaluate/generate.h"
#include "evaluate/session.h"

namespace ring {

// Adds --chat-template.
Option add_chat_template(Command, std::string& choice);

// Adds --context; see open_session().
void add_context(Command, std::int64_t& context);

// Adds --kv-cache: auto or fp8.
void add_kv_cache(Command, KvCacheType&);

struct ChatOptions {
  std::string chat_template;  // see open_chat()
  std::string system;         // system message, or empty
  std::string once;           // a single question; if empty, each line of standard input is a question
};

// Prints each answer, followed by a newline. Answer n, starting at 0, is sampled with the seed + n. Throws Error if
// there is no template, or if the conversation no longer fits into the model's context.
void run_chat(const Session&, const ChatOptions&, Sampling, std::int64_t max_tokens,
              const std::vector<std::string>& stops);

}  // namespace ring
