#include "cli/text_generation.h"

#include <utility>

#include "core/log.h"
#include "evaluate/generate_text.h"
#include "evaluate/prompt.h"

namespace ring {

TextGeneration::TextGeneration(TextModel& model, std::vector<std::int32_t> prompt, const CompletionRequest& request)
    : model_(model) {
  usage_.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  thread_ = std::thread([this, request, prompt = std::move(prompt)] { run(request, prompt); });
}

TextGeneration::~TextGeneration() {
  cancelled_ = true;
  thread_.join();
  model_.turn_.release();
}

void TextGeneration::push(std::string piece) {
  if (piece.empty()) return;
  const std::lock_guard lock(mutex_);
  pieces_.push_back(std::move(piece));
  changed_.notify_one();
}

void TextGeneration::generate(const CompletionRequest& request, const std::vector<std::int32_t>& prompt) {
  const TextEnding ending = request.chat ? model_.chat_->answer_ending(request.stops)
                                         : TextEnding{.stops = request.stops, .more_tokens = model_.generation_.ends};
  const GeneratedText text = generate_text(model_.session_, {prompt, request.sampling}, request.max_tokens, ending,
                                           [&](const std::string& piece) {
                                             push(piece);
                                             return !cancelled_ && !model_.stopping_;
                                           });
  usage_.tokens = text.tokens();
  if (!text.continues()) finish_reason_ = "stop";
}

void TextGeneration::run(const CompletionRequest& request, const std::vector<std::int32_t>& prompt) {
  std::string error;
  try {
    generate(request, prompt);
  } catch (const std::exception& e) {
    error = e.what();
    log::warn("serve: a text ended with an error: ", error);  // a streaming client can no longer get an error reply
  }
  const std::lock_guard lock(mutex_);
  error_ = error;
  over_ = true;
  changed_.notify_one();
}

std::optional<std::string> TextGeneration::wait_for_piece(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, patience, [&] { return over_ || !pieces_.empty(); })) return std::nullopt;
  if (pieces_.empty() && !error_.empty()) fail(error_);
  if (pieces_.empty()) return "";
  std::string piece = std::move(pieces_.front());
  pieces_.pop_front();
  return piece;
}

TextModel::TextModel(Session session, int max_waiting, const std::string& chat_template)
    : session_(std::move(session)), generation_(generation_config_of(session_.origin)), max_waiting_(max_waiting) {
  try {
    chat_.emplace(open_chat(session_, chat_template));
  } catch (const Error& e) {
    if (!chat_template.empty()) throw;
    no_chat_ = e.what();
  }
}

std::vector<std::int32_t> TextModel::tokens_of(const CompletionRequest& r) const {
  const std::int64_t context = session_.config.model.context;
  try {
    if (r.chat) return chat_->encode_prompt(r.messages, context);
    std::vector<std::int32_t> tokens = prompt_tokens(*session_.tokenizer, r.prompt);
    check_prompt_fits(tokens.size(), context, "prompt");
    return tokens;
  } catch (const Error& e) {
    throw ApiError(400, e.what(), r.chat ? "messages" : "prompt");
  }
}

void TextModel::wait_for_turn(std::chrono::milliseconds patience) {
  if (turn_.try_acquire()) return;
  const bool room = waiting_.fetch_add(1) < max_waiting_, ours = room && turn_.try_acquire_for(patience);
  --waiting_;
  if (!ours)
    throw ApiError(429,
                   str("the model writes one text at a time, ",
                       room ? "and the present one takes long" : "and too many requests wait", "; try again later"));
}

std::shared_ptr<TextGeneration> TextModel::start_generation(const CompletionRequest& r,
                                                            std::chrono::milliseconds patience) {
  if (r.chat && !chat_) throw ApiError(501, "this model does not support chats: " + no_chat_);
  wait_for_turn(patience);
  try {
    return std::make_shared<TextGeneration>(*this, tokens_of(r), r);
  } catch (...) {
    turn_.release();
    throw;
  }
}

}  // namespace ring
