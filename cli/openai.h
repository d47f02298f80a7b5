#pragma once
// Requests and replies of OpenAI's completion and chat protocols, as far as a single model without tools needs them
// (platform.openai.com/docs/api-reference/completions and /chat). Unsupported requests are refused, never ignored.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/check.h"
#include "evaluate/chat.h"
#include "evaluate/generate.h"

namespace ring {

// An error that is sent to the client: a reply with a status other than 200.
struct ApiError : Error {
  ApiError(int s, const std::string& message, std::string key = "")
      : Error(message), status(s), param(std::move(key)) {}
  int status;
  std::string param;  // the invalid key; empty if no single key is the cause
};
std::string error_json(int status, const std::string& message, const std::string& param = "");

struct CompletionRequest {
  bool chat = false;
  std::string prompt;                 // set if the request is not a chat
  std::vector<ChatMessage> messages;  // set if the request is a chat
  Sampling sampling{.temperature = 1};
  std::int64_t max_tokens = 256;
  std::vector<std::string> stops;
  bool stream = false, usage = false;  // usage: true to end the stream with token counts
};

// Name, limit and default sampling that a server applies to requests.
struct ServeLimits {
  std::string model;
  std::int64_t max_tokens = 4096;
  Sampling usual{.temperature = 1};  // defaults for keys that are missing in a request
};

// Parses the body of POST /v1/completions or /v1/chat/completions. Throws ApiError, which names the key, if it is
// invalid.
CompletionRequest parse_completion(const std::string& body, const ServeLimits&);
CompletionRequest parse_chat(const std::string& body, const ServeLimits&);

struct CompletionUsage {
  std::int64_t prompt_tokens = 0, tokens = 0;  // tokens: number of tokens in the reply
};

// Formats the reply to a request.
class CompletionReply {
 public:
  CompletionReply(const CompletionRequest&, std::string model);
  std::string full_reply(const std::string& text, const std::string& finish_reason, const CompletionUsage&) const;
  // A stream consists of opening_event(), any number of results of text_event(), and closing_events().
  std::string opening_event() const;  // for a chat, returns the delta with the role; else ""
  static std::string keep_alive_event() { return ": the model computes\n\n"; }  // an SSE comment, which clients ignore
  std::string text_event(const std::string& text) const;
  std::string closing_events(const std::string& finish_reason, const CompletionUsage&) const;

 private:
  nlohmann::ordered_json reply_json(nlohmann::ordered_json choice, bool streamed) const;
  std::string event_json(const nlohmann::ordered_json& content, const char* finish_reason) const;
  bool chat_, usage_;
  std::string model_, id_;
  std::int64_t created_;  // creation time in seconds since 1970
};

// Each function formats a reply: the list of models, or one model. created: in seconds since 1970.
std::string models_json(const std::string& model, std::int64_t created);
std::string model_json(const std::string& model, std::int64_t created);

}  // namespace ring
