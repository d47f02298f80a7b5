#include "cli/chat.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iostream>

#include "cli/command.h"
#include "core/byte_order_mark.h"
#include "core/check.h"
#include "core/io_error.h"
#include "evaluate/chat.h"
#include "evaluate/generate_text.h"
#include "text/chat/format.h"

namespace ring {
namespace {

// Reads the next line that is not blank, without its line end (LF or CR LF); shows a prompt on a terminal. Returns
// false at the end of the input. Throws Error if the input cannot be read, e.g. because it is a folder.
bool next_line(std::string& line) {
  const bool asks = ::isatty(STDIN_FILENO) == 1;
  do {
    if (asks) std::cerr << "> " << std::flush;
    if (!std::getline(std::cin, line)) {
      if (std::ferror(stdin)) fail("cannot read the standard input: ", io_error_text(errno));
      if (asks) std::cerr << std::endl;
      return false;
    }
    line.erase(0, line.size() - without_byte_order_marks(line).size());
    if (line.ends_with('\r')) line.pop_back();
  } while (line.find_first_not_of(" \t\r") == std::string::npos);
  return true;
}

std::string answer(const Session& s, const Chat& chat, const std::vector<ChatMessage>& messages,
                   const Sampling& sampling, std::int64_t max_tokens, const std::vector<std::string>& stops) {
  const TextStart start{chat.encode_prompt(messages, s.config.model.context), sampling};
  const GeneratedText text =
      generate_text(s, start, max_tokens, chat.answer_ending(stops), [](const std::string& piece) {
        std::cout << piece << std::flush;
        return static_cast<bool>(std::cout);
      });
  std::cout << std::endl;
  return text.text();
}

}  // namespace

Option add_chat_template(Command command, std::string& choice) {
  return command
      .add_option("--chat-template", choice,
                  "Format of conversations: a file with a Jinja template, or " + chat::template_names() +
                      "; default: the template of the model's training")
      .type_name("NAME|FILE");
}

void add_context(Command command, std::int64_t& context) {
  command.add_number(
      "--context", context,
      "Maximum tokens of a text with its prompt; beyond that its older half is dropped; 0: model.context", 0,
      kMaxLength);
}

void add_kv_cache(Command command, KvCacheType& type) {
  const auto take = [&type](const std::string& name) {
    type = name == "fp8" ? KvCacheType::fp8 : KvCacheType::automatic;
  };
  command
      .add_option("--kv-cache", take,
                  "Type of cached keys and values: auto (the type of the computation) or fp8 (half the bytes of bf16)")
      .one_of({"auto", "fp8"})
      .show_default("auto");
}

void run_chat(const Session& s, const ChatOptions& o, Sampling sampling, std::int64_t max_tokens,
              const std::vector<std::string>& stops) {
  const Chat chat = open_chat(s, o.chat_template);
  std::vector<ChatMessage> messages;
  if (!o.system.empty()) messages.push_back({"system", o.system});
  for (std::string line = o.once; std::cout && (!o.once.empty() || next_line(line)); ++sampling.seed) {
    messages.push_back({"user", line});
    messages.push_back({"assistant", answer(s, chat, messages, sampling, max_tokens, stops)});
    if (!o.once.empty()) return;
  }
}

}  // namespace ring
