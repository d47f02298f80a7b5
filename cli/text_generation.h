#pragma once
// Generates text in a background thread; the caller takes it piece by piece.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <semaphore>
#include <string>
#include <thread>

#include "cli/openai.h"
#include "evaluate/generation_config.h"
#include "evaluate/session.h"

namespace ring {

class TextModel;

// Generates a text. Ends when it is destroyed or when the model is stopped.
class TextGeneration {
 public:
  TextGeneration(TextModel&, std::vector<std::int32_t> prompt, const CompletionRequest&);
  ~TextGeneration();
  TextGeneration(const TextGeneration&) = delete;
  TextGeneration& operator=(const TextGeneration&) = delete;

  // Waits for the next piece. Returns "" when the text is complete, and nullopt if no piece came within `patience`.
  // Throws Error if generation failed.
  std::optional<std::string> wait_for_piece(std::chrono::milliseconds patience);
  // Valid after next() has returned "".
  const char* finish_reason() const { return finish_reason_; }  // "stop" or "length"
  const CompletionUsage& usage() const { return usage_; }

 private:
  void run(const CompletionRequest&, const std::vector<std::int32_t>& prompt);
  void generate(const CompletionRequest&, const std::vector<std::int32_t>& prompt);
  void push(std::string piece);

  TextModel& model_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> pieces_;
  bool over_ = false;
  std::string error_;
  std::atomic<bool> cancelled_{false};
  const char* finish_reason_ = "length";
  CompletionUsage usage_;
  std::thread thread_;
};

// A model that generates one text at a time. Thread-safe.
class TextModel {
 public:
  // max_waiting: maximum number of requests that wait for their turn. chat_template: see open_chat(). Throws Error if a
  // given template cannot be used; if none is given and the run's template is missing or unusable, start_generation()
  // refuses chats.
  TextModel(Session session, int max_waiting, const std::string& chat_template);

  // Waits for its turn and starts a text. Throws ApiError 400 if the prompt cannot be encoded or does not fit into the
  // context, 501 if chats are not available, and 429 if too many requests wait or if the turn does not come within
  // `patience`.
  std::shared_ptr<TextGeneration> start_generation(const CompletionRequest&, std::chrono::milliseconds patience);
  const GenerationConfig& generation() const { return generation_; }
  void stop() { stopping_ = true; }  // ends the current text after its next token

 private:
  friend class TextGeneration;
  // Encodes the prompt. Slow, so it is only called for the request whose turn it is.
  std::vector<std::int32_t> tokens_of(const CompletionRequest&) const;
  void wait_for_turn(std::chrono::milliseconds patience);

  Session session_;
  GenerationConfig generation_;
  std::optional<Chat> chat_;
  std::string no_chat_;  // why chats are not available; empty if they are available
  int max_waiting_;
  std::atomic<int> waiting_{0};
  std::binary_semaphore turn_{1};
  std::atomic<bool> stopping_{false};
};

}  // namespace ring
