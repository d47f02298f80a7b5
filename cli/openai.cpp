#include "cli/openai.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "core/check.h"
#include "core/json.h"
#include "core/yaml.h"

namespace ring {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxStops = 4, kMaxStopBytes = 1000;  // kMaxStops is OpenAI's limit
constexpr double kMaxTemperature = 100;
constexpr std::size_t kMaxEntries = 100'000;  // maximum number of JSON entries in a request

[[noreturn]] void refuse(const std::string& key, const std::string& why) {
  throw ApiError(400, str("'", shown(key), "' ", why), key);
}

// Removes keys from a request as they are read; keys that remain are unknown.
class Keys {
 public:
  explicit Keys(Json body) : body_(std::move(body)) {}

  // Removes a key and returns its value; null if the key is missing, so an explicit null counts as missing.
  Json take(const std::string& key) {
    const auto at = body_.find(key);
    if (at == body_.end()) return nullptr;
    Json value = std::move(*at);
    body_.erase(at);
    return value;
  }
  void drop(std::initializer_list<const char*> keys) {
    for (const char* key : keys) body_.erase(key);
  }
  double number(const std::string& key, double otherwise, double min, double max) {
    const Json value = take(key);
    if (value.is_null()) return otherwise;
    if (!value.is_number()) refuse(key, "must be a number");
    const double n = value.get<double>();
    if (!(n >= min && n <= max)) refuse(key, str("must be from ", min, " to ", max, ", got ", n));
    return n;
  }
  std::int64_t count(const std::string& key, std::int64_t otherwise, std::int64_t min, std::int64_t max) {
    const Json value = take(key);
    if (value.is_null()) return otherwise;
    if (!value.is_number_integer()) refuse(key, "must be an integer");
    const bool large = value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(max);
    if (large || value.get<std::int64_t>() < min)
      refuse(key, str("must be from ", min, " to ", max, ", got ", shown(value.dump())));
    return value.get<std::int64_t>();
  }
  bool flag(const std::string& key) {
    const Json value = take(key);
    if (!value.is_null() && !value.is_boolean()) refuse(key, "must be true or false");
    return value.is_boolean() && value.get<bool>();
  }
  // Accepts only this value of the key, or no value.
  void fixed(const std::string& key, const Json& value) {
    const Json given = take(key);
    if (!given.is_null() && given != value) refuse(key, "supports only " + value.dump());
  }
  void all_known() const {
    if (!body_.empty()) refuse(body_.begin().key(), "is not supported");
  }

 private:
  Json body_;
};

std::string text_in(const Json& value, const std::string& key) {
  if (!value.is_string()) refuse(key, "must be a string");
  return value.get<std::string>();
}

std::string prompt_of(Keys& keys) {
  Json prompt = keys.take("prompt");
  if (prompt.is_array() && prompt.size() == 1 && prompt[0].is_string()) prompt = Json(prompt[0]);
  if (prompt.is_array()) refuse("prompt", "must be one string, got a list");
  return text_in(prompt, "prompt");
}

// Returns the text of a message. The content is a string or a list of text parts.
std::string content_of(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse("messages", "must have text as content of each message");
  std::string text;
  for (const Json& part : content) {
    const bool is_text = part.is_object() && part.value("type", Json()) == "text" && part.contains("text");
    if (!is_text || !part["text"].is_string()) refuse("messages", "must have only text parts");
    text += part["text"].get<std::string>();
  }
  return text;
}

// Replaces the role "developer" of newer clients by "system", which chat templates use.
std::string role_of(const Json& role) {
  for (const char* known : {"system", "user", "assistant"})
    if (role == known) return known;
  if (role == "developer") return "system";
  refuse("messages", "has the role " + json_text(role) + "; expected system, developer, user or assistant");
}

// Parses a message. Unknown members are accepted if they are empty: clients send back the replies that they got, which
// contain such members.
ChatMessage message_of(const Json& m) {
  if (!m.is_object() || !m.contains("role") || !m.contains("content"))
    refuse("messages", "has a message without role or content");
  for (const auto& [key, value] : m.items())
    if (key != "role" && key != "content" && !value.empty())
      refuse("messages", "has a message with '" + key + "', which is not supported");
  return {role_of(m["role"]), content_of(m["content"])};
}

std::vector<ChatMessage> messages_of(Keys& keys) {
  const Json list = keys.take("messages");
  if (!list.is_array() || list.empty()) refuse("messages", "must be a non-empty list of messages");
  std::vector<ChatMessage> messages;
  for (const Json& m : list) messages.push_back(message_of(m));
  return messages;
}

std::vector<std::string> stops_of(Keys& keys) {
  Json stop = keys.take("stop");
  if (stop.is_null()) return {};
  if (stop.is_string()) stop = Json::array({stop});
  if (!stop.is_array() || stop.size() > kMaxStops)
    refuse("stop", str("must be a string or a list of at most ", kMaxStops, " strings"));
  std::vector<std::string> stops;
  for (const Json& s : stop) {
    stops.push_back(text_in(s, "stop"));
    if (stops.back().empty() || stops.back().size() > kMaxStopBytes)
      refuse("stop", str("must have strings of 1 to ", kMaxStopBytes, " bytes"));
  }
  return stops;
}

Keys keys_of(const std::string& body) {
  Json json;
  try {
    json = parse_json<Json>(body, {.entries = kMaxEntries});
  } catch (const Error& e) {
    throw ApiError(400, str("the body is not valid JSON: ", e.what()));
  }
  if (!json.is_object()) throw ApiError(400, "the body is not a JSON object");
  return Keys(std::move(json));
}

void check_model(Keys& keys, const std::string& model) {
  const Json name = keys.take("model");
  if (name.is_null() || name == model) return;
  throw ApiError(404, str("the model ", shown(json_text(name)), " is not served here, only '", model, "'"), "model");
}

std::uint64_t seed_of(Keys& keys) {
  const std::int64_t given = keys.count("seed", -1, 0, std::numeric_limits<std::int64_t>::max());
  return given >= 0 ? static_cast<std::uint64_t>(given) : std::random_device()();
}

void read_sampling(Keys& keys, Sampling& s, const Sampling& usual) {
  s.temperature = keys.number("temperature", usual.temperature, 0, kMaxTemperature);
  s.top_p = keys.number("top_p", usual.top_p, 0, 1);
  s.top_k = keys.count("top_k", usual.top_k, 0, std::numeric_limits<std::int32_t>::max());
  s.repetition_penalty = keys.number("repetition_penalty", usual.repetition_penalty, 0.01, 100);
  s.seed = seed_of(keys);
}

// Refuses options that would change the reply in unsupported ways; ignores options that do not affect the reply.
void read_others(Keys& keys) {
  keys.fixed("n", 1);
  keys.fixed("presence_penalty", 0);
  keys.fixed("frequency_penalty", 0);
  keys.fixed("logit_bias", Json::object());
  keys.fixed("logprobs", false);
  keys.fixed("response_format", {{"type", "text"}});
  keys.drop({"user", "metadata", "store", "safety_identifier", "prompt_cache_key"});
}

// Reads the keys that both kinds of requests have.
void read_writing(Keys& keys, CompletionRequest& r, const ServeLimits& limits) {
  read_sampling(keys, r.sampling, limits.usual);
  const std::int64_t usual = std::min<std::int64_t>(r.max_tokens, limits.max_tokens);
  r.max_tokens = keys.count("max_tokens", usual, 1, limits.max_tokens);
  r.stops = stops_of(keys);
  r.stream = keys.flag("stream");
  if (Json options = keys.take("stream_options"); !options.is_null()) {
    if (!options.is_object()) refuse("stream_options", "must be an object");
    Keys inner(std::move(options));
    r.usage = inner.flag("include_usage");
    inner.drop({"include_obfuscation"});
    inner.all_known();
  }
  read_others(keys);
}

}  // namespace

CompletionRequest parse_completion(const std::string& body, const ServeLimits& limits) {
  Keys keys = keys_of(body);
  check_model(keys, limits.model);
  CompletionRequest r;
  r.prompt = prompt_of(keys);
  read_writing(keys, r, limits);
  keys.fixed("best_of", 1);
  keys.fixed("echo", false);
  keys.fixed("suffix", "");
  keys.all_known();
  return r;
}

CompletionRequest parse_chat(const std::string& body, const ServeLimits& limits) {
  Keys keys = keys_of(body);
  check_model(keys, limits.model);
  CompletionRequest r;
  r.chat = true;
  r.messages = messages_of(keys);
  read_writing(keys, r, limits);
  r.max_tokens = keys.count("max_completion_tokens", r.max_tokens, 1, limits.max_tokens);
  keys.fixed("modalities", Json::array({"text"}));
  keys.all_known();
  return r;
}

}  // namespace ring
