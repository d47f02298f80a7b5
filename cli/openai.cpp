#include "cli/openai.h"

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "comm/secret.h"

namespace ring {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostStops = 4, kMostStopBytes = 1000;  // OpenAI's number
constexpr double kMostTemperature = 100;

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

[[noreturn]] void refuse(const std::string& key, const std::string& why) {
  throw ApiError(400, str("'", key, "' ", why), key);
}

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Takes the keys of a request out of it, so that what is left is what nobody knows.
class Keys {
 public:
  explicit Keys(Json body) : body_(std::move(body)) {}

  // Null counts as not given.
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
  double number(const std::string& key, double otherwise, double least, double most) {
    const Json value = take(key);
    if (value.is_null()) return otherwise;
    if (!value.is_number()) refuse(key, "is not a number");
    const double n = value.get<double>();
    if (!(n >= least && n <= most)) refuse(key, str("is ", n, "; from ", least, " to ", most));
    return n;
  }
  std::int64_t count(const std::string& key, std::int64_t otherwise, std::int64_t least, std::int64_t most) {
    const Json value = take(key);
    if (value.is_null()) return otherwise;
    if (!value.is_number_integer()) refuse(key, "is not a whole number");
    const bool large = value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(most);
    if (large || value.get<std::int64_t>() < least)
      refuse(key, str("is ", value.dump(), "; from ", least, " to ", most));
    return value.get<std::int64_t>();
  }
  bool flag(const std::string& key) {
    const Json value = take(key);
    if (!value.is_null() && !value.is_boolean()) refuse(key, "is neither true nor false");
    return value.is_boolean() && value.get<bool>();
  }
  // It may only have this value.
  void fixed(const std::string& key, const Json& value) {
    const Json given = take(key);
    if (!given.is_null() && given != value) refuse(key, "is not supported, other than " + value.dump());
  }
  void all_known() const {
    if (!body_.empty()) refuse(body_.begin().key(), "is not known here");
  }

 private:
  Json body_;
};

std::string text_in(const Json& value, const std::string& key) {
  if (!value.is_string()) refuse(key, "is not text");
  return value.get<std::string>();
}

std::string prompt_of(Keys& keys) {
  Json prompt = keys.take("prompt");
  if (prompt.is_array() && prompt.size() == 1 && prompt[0].is_string()) prompt = Json(prompt[0]);
  if (prompt.is_array()) refuse("prompt", "is a list; give one text");
  return text_in(prompt, "prompt");
}

std::vector<std::string> stops_of(Keys& keys) {
  Json stop = keys.take("stop");
  if (stop.is_null()) return {};
  if (stop.is_string()) stop = Json::array({stop});
  if (!stop.is_array() || stop.size() > kMostStops)
    refuse("stop", str("is not a text or a list of up to ", kMostStops));
  std::vector<std::string> stops;
  for (const Json& s : stop) {
    stops.push_back(text_in(s, "stop"));
    if (stops.back().empty() || stops.back().size() > kMostStopBytes)
      refuse("stop", str("has a text that is not of 1 to ", kMostStopBytes, " bytes"));
  }
  return stops;
}

Keys keys_of(const std::string& body) {
  Json json = Json::parse(body, nullptr, false);
  if (!json.is_object()) throw ApiError(400, "the body is not a JSON object");
  return Keys(std::move(json));
}

void check_model(Keys& keys, const std::string& model) {
  const Json name = keys.take("model");
  if (name.is_null() || name == model) return;
  throw ApiError(404,
                 str("the model ", name.dump(-1, ' ', false, Json::error_handler_t::replace),
                     " is not served here, only '", model, "'"),
                 "model");
}

std::uint64_t seed_of(Keys& keys) {
  const std::int64_t given = keys.count("seed", -1, 0, std::numeric_limits<std::int64_t>::max());
  return given >= 0 ? static_cast<std::uint64_t>(given) : std::random_device()();
}

void read_sampling(Keys& keys, Sampling& s) {
  s.temperature = keys.number("temperature", 1, 0, kMostTemperature);
  s.top_p = keys.number("top_p", 1, 0, 1);
  s.top_k = keys.count("top_k", 0, 0, std::numeric_limits<std::int32_t>::max());
  s.repetition_penalty = keys.number("repetition_penalty", 1, 0.01, 100);
  s.seed = seed_of(keys);
}

// What changes the reply in ways that are not there, and what does not change it.
void read_others(Keys& keys) {
  keys.fixed("n", 1);
  keys.fixed("best_of", 1);
  keys.fixed("echo", false);
  keys.fixed("suffix", "");
  keys.fixed("presence_penalty", 0);
  keys.fixed("frequency_penalty", 0);
  keys.fixed("logit_bias", Json::object());
  keys.fixed("logprobs", false);
  keys.fixed("response_format", {{"type", "text"}});
  keys.drop({"user", "metadata", "store", "safety_identifier", "prompt_cache_key"});
  keys.all_known();
}

Json usage_json(const CompletionUsage& u) {
  return {{"prompt_tokens", u.prompt_tokens},
          {"completion_tokens", u.tokens},
          {"total_tokens", u.prompt_tokens + u.tokens}};
}

Json choice(const std::string& text, const Json& finish_reason) {
  return {{"index", 0}, {"text", text}, {"logprobs", nullptr}, {"finish_reason", finish_reason}};
}

Json reply_json(const CompletionReply& r, Json choices) {
  return {{"id", r.id()},
          {"object", "text_completion"},
          {"created", r.created()},
          {"model", r.model()},
          {"choices", std::move(choices)}};
}

std::string event_of(const Json& json) { return "data: " + text_of(json) + "\n\n"; }

}  // namespace

std::string error_json(int status, const std::string& message, const std::string& param) {
  const char* type = status == 401   ? "authentication_error"
                     : status == 429 ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  return text_of({{"error",
                   {{"message", message},
                    {"type", type},
                    {"param", param.empty() ? Json() : Json(param)},
                    {"code", status == 404 && param == "model" ? Json("model_not_found") : Json()}}}});
}

CompletionRequest parse_completion(const std::string& body, const ServeLimits& limits) {
  Keys keys = keys_of(body);
  check_model(keys, limits.model);
  CompletionRequest r;
  r.prompt = prompt_of(keys);
  read_sampling(keys, r.sampling);
  const std::int64_t usual = std::min<std::int64_t>(r.max_tokens, limits.max_tokens);
  r.max_tokens = keys.count("max_tokens", usual, 1, limits.max_tokens);
  r.stops = stops_of(keys);
  r.stream = keys.flag("stream");
  if (Json options = keys.take("stream_options"); !options.is_null()) {
    if (!options.is_object()) refuse("stream_options", "is not an object");
    Keys inner(std::move(options));
    r.usage = inner.flag("include_usage");
    inner.drop({"include_obfuscation"});
    inner.all_known();
  }
  read_others(keys);
  return r;
}

CompletionReply::CompletionReply(const CompletionRequest& r, std::string model)
    : usage_(r.usage), model_(std::move(model)), id_("cmpl-" + random_cookie()), created_(now()) {}

std::string CompletionReply::whole(const std::string& text, const std::string& finish_reason,
                                   const CompletionUsage& usage) const {
  Json all = reply_json(*this, Json::array({choice(text, finish_reason)}));
  all["usage"] = usage_json(usage);
  return text_of(all);
}

std::string CompletionReply::piece(const std::string& text) const {
  return event_of(reply_json(*this, Json::array({choice(text, nullptr)})));
}

std::string CompletionReply::last(const std::string& finish_reason, const CompletionUsage& usage) const {
  std::string out = event_of(reply_json(*this, Json::array({choice("", finish_reason)})));
  if (usage_) {
    Json counted = reply_json(*this, Json::array());
    counted["usage"] = usage_json(usage);
    out += event_of(counted);
  }
  return out + "data: [DONE]\n\n";
}

std::string model_json(const std::string& model, std::int64_t created) {
  return text_of({{"id", model}, {"object", "model"}, {"created", created}, {"owned_by", "ringmaster"}});
}

std::string models_json(const std::string& model, std::int64_t created) {
  return text_of({{"object", "list"}, {"data", Json::array({Json::parse(model_json(model, created))})}});
}

}  // namespace ring
