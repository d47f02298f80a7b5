#include "evaluate/chat.h"

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "data/encode_job.h"
#include "evaluate/generation_config.h"
#include "evaluate/prompt.h"
#include "evaluate/session.h"

namespace ring {

Chat::Chat(chat::Format format, const std::string& name, std::shared_ptr<const Tokenizer> tokenizer,
           std::vector<std::int32_t> ends)
    : writer_(std::move(format), name),
      tokenizer_(std::move(tokenizer)),
      ends_(std::move(ends)),
      end_(writer_.end_of_answer()) {
  if (end_.empty()) return;
  const std::vector<std::int32_t> ids = encode({{end_, true}}, false);
  // A control token has no visible text. If the ending begins with one, this token alone identifies the ending.
  const bool control = !ids.empty() && tokenizer_->bytes_of(ids[0]).empty();
  if (ids.size() != 1 && !control) return;
  end_token_ = ids[0];
  end_.clear();
}

// Encodes parts one by one, like `data prepare`, so that no token spans a question and an answer.
std::vector<std::int32_t> Chat::encode(const std::vector<chat::Part>& parts, bool first) const {
  EncodeJob job;
  for (const chat::Part& p : parts) {
    const std::size_t begin = job.text.size();
    job.text += p.text;
    if (!job.pieces.empty() && job.pieces.back().counts == p.counts)
      job.pieces.back().end = job.text.size();
    else
      job.pieces.push_back({.begin = begin, .end = job.text.size(), .first = first && begin == 0, .counts = p.counts});
  }
  return DocumentFrame(*tokenizer_, DocumentShape::conversation).encode(job, *tokenizer_->encoder()).tokens;
}

std::vector<std::int32_t> Chat::encode_prompt(const std::vector<ChatMessage>& messages, std::int64_t context) const {
  auto list = nlohmann::ordered_json::array();
  for (const ChatMessage& m : messages) list.push_back({{"role", m.role}, {"content", m.content}});
  // Refuses a conversation early if it is certainly too long: encoding a text in parts yields about as many tokens as
  // encoding it whole, and never fewer than half as many.
  const auto refuse_early = [&](const std::string& whole) {
    if (const std::size_t tokens = encode({{whole, false}}, true).size();
        tokens / 2 >= static_cast<std::size_t>(context))
      check_prompt_fits(tokens, context, "conversation");
  };
  std::vector<std::int32_t> ids = encode(writer_.prompt(list, nullptr, refuse_early), true);
  if (ids.empty()) fail("the chat template produces no text for this conversation");
  check_prompt_fits(ids.size(), context, "conversation");
  return ids;
}

TextEnding Chat::answer_ending(std::vector<std::string> stops) const {
  if (!end_.empty()) stops.push_back(end_);
  return {.stops = std::move(stops), .token = end_token_, .more_tokens = ends_, .strip = true};
}

Chat open_chat(const Session& s, const std::string& choice) {
  const std::string name = choice.empty() ? "chat template of " + s.origin.checkpoint : choice;
  return {chat_format_of(s.origin, choice, *s.tokenizer), name, s.tokenizer, generation_config_of(s.origin).ends};
}

}  // namespace ring
