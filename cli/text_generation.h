#pragma once
// Text that a model writes, piece by piece, while somebody takes it.

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

// One text. Ends when this does, or when the model is stopped.
class TextGeneration {
 public:
  TextGeneration(TextModel&, std::vector<std::int32_t> prompt, const CompletionRequest&);
  ~TextGeneration();
  TextGeneration(const TextGeneration&) = delete;
  TextGeneration& operator=(const TextGeneration&) = delete;

  // The next piece; empty: the text is over; null: nothing came meanwhile. Error: the model failed.
  std::optional<std::string> next(std::chrono::milliseconds patience);
  // Known once the text is over.
  const char* finish_reason() const { return finish_reason_; }  // "stop" or "length"
  const CompletionUsage& usage() const { return usage_; }

 private:
  void run(const CompletionRequest&, const std::vector<std::int32_t>& prompt);
  void write(const CompletionRequest&, const std::vector<std::int32_t>& prompt);
  void give(std::string piece);

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

// A model that writes one text at a time.
class TextModel {
 public:
  // most_waiting: texts that may wait for the one before. chat_template: see open_chat(). Error: a template that was
  // chosen cannot be used; of one that is kept or missing, chats say so.
  TextModel(Session session, int most_waiting, const std::string& chat_template);

  // Waits for its turn. ApiError: the prompt or the conversation cannot be written, or does not fit the model's context
  // (400); there are no chats (501); too many wait already, or it takes too long (429).
  std::shared_ptr<TextGeneration> write(const CompletionRequest&, std::chrono::milliseconds patience);
  const GenerationConfig& generation() const { return generation_; }
  void stop() { stopping_ = true; }  // what is being written ends with its next token

 private:
  friend class TextGeneration;
  std::vector<std::int32_t> tokens_of(const CompletionRequest&) const;  // which costs time: whose turn it is asks
  void wait_for_turn(std::chrono::milliseconds patience);

  Session session_;
  GenerationConfig generation_;
  std::optional<Chat> chat_;
  std::string no_chat_;  // why not
  int most_waiting_;
  std::atomic<int> waiting_{0};
  std::binary_semaphore turn_{1};
  std::atomic<bool> stopping_{false};
};

}  // namespace ring
