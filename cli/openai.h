#pragma once
// Requests and replies of OpenAI's protocol for completions and chats, as far as one model without tools needs it
// (platform.openai.com/docs/api-reference/completions and /chat). What a request asks for and is not done is refused,
// not passed over.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/check.h"
#include "evaluate/chat.h"
#include "evaluate/generate.h"

namespace ring {

// What clients read from a status that is not 200.
struct ApiError : Error {
  ApiError(int s, const std::string& message, std::string key = "")
      : Error(message), status(s), param(std::move(key)) {}
  int status;
  std::string param;  // the key that is wrong; empty: none
};
std::string error_json(int status, const std::string& message, const std::string& param = "");

struct CompletionRequest {
  bool chat = false;
  std::string prompt;                 // without a chat
  std::vector<ChatMessage> messages;  // of a chat
  Sampling sampling{.temperature = 1};
  std::int64_t max_tokens = 256;
  std::vector<std::string> stops;
  bool stream = false, usage = false;  // usage: the stream ends with it
};

// The model's name, the maximum number of tokens in a reply, and how tokens are drawn.
struct ServeLimits {
  std::string model;
  std::int64_t max_tokens = 4096;
  Sampling usual{.temperature = 1};  // for requests that do not set it
};

// body: JSON of POST /v1/completions, or of /v1/chat/completions. ApiError: what is wrong, by key.
CompletionRequest parse_completion(const std::string& body, const ServeLimits&);
CompletionRequest parse_chat(const std::string& body, const ServeLimits&);

struct CompletionUsage {
  std::int64_t prompt_tokens = 0, tokens = 0;
};

// Writes the replies to one request.
class CompletionReply {
 public:
  CompletionReply(const CompletionRequest&, std::string model);
  std::string whole(const std::string& text, const std::string& finish_reason, const CompletionUsage&) const;
  // What a stream has: the first, pieces, then the last.
  std::string first() const;                                           // of a chat who speaks, else nothing
  static std::string waiting() { return ": the model computes\n\n"; }  // a comment, which clients pass over
  std::string piece(const std::string& text) const;
  std::string last(const std::string& finish_reason, const CompletionUsage&) const;

 private:
  nlohmann::ordered_json reply(nlohmann::ordered_json choice, bool streamed) const;
  std::string event(const nlohmann::ordered_json& content, const char* finish_reason) const;
  bool chat_, usage_;
  std::string model_, id_;
  std::int64_t created_;  // seconds since 1970
};

std::string models_json(const std::string& model, std::int64_t created);
std::string model_json(const std::string& model, std::int64_t created);

}  // namespace ring
