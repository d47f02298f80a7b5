#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/openai.h"
#include "core/json.h"
#include "job/secret.h"

namespace ring {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string reply_text(const OrderedJson& json) { return json_text(json); }

std::string event_of(const OrderedJson& json) { return "data: " + reply_text(json) + "\n\n"; }

OrderedJson model_of(const std::string& model, std::int64_t created) {
  return {{"id", model}, {"object", "model"}, {"created", created}, {"owned_by", "ringmaster"}};
}

OrderedJson usage_json(const CompletionUsage& u) {
  return {{"prompt_tokens", u.prompt_tokens},
          {"completion_tokens", u.tokens},
          {"total_tokens", u.prompt_tokens + u.tokens}};
}

}  // namespace

std::string error_json(int status, const std::string& message, const std::string& param) {
  const char* type = status == 401   ? "authentication_error"
                     : status == 429 ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  return reply_text({{"error",
                      {{"message", message},
                       {"type", type},
                       {"param", param.empty() ? OrderedJson() : OrderedJson(param)},
                       {"code", status == 404 && param == "model" ? OrderedJson("model_not_found") : OrderedJson()}}}});
}

CompletionReply::CompletionReply(const CompletionRequest& r, std::string model)
    : chat_(r.chat),
      usage_(r.usage),
      model_(std::move(model)),
      id_((r.chat ? "chatcmpl-" : "cmpl-") + random_cookie()),
      created_(std::time(nullptr)) {}

OrderedJson CompletionReply::reply_json(OrderedJson choices, bool streamed) const {
  const char* chat = streamed ? "chat.completion.chunk" : "chat.completion";
  return {{"id", id_},
          {"object", chat_ ? chat : "text_completion"},
          {"created", created_},
          {"model", model_},
          {"choices", std::move(choices)}};
}

// Formats one event of a stream. content: the members of the choice that hold the text.
std::string CompletionReply::event_json(const OrderedJson& content, const char* finish_reason) const {
  OrderedJson choice = {{"index", 0}};
  choice.update(content);
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finish_reason ? OrderedJson(finish_reason) : OrderedJson();
  return event_of(reply_json(OrderedJson::array({std::move(choice)}), true));
}

std::string CompletionReply::full_reply(const std::string& text, const std::string& finish_reason,
                                        const CompletionUsage& usage) const {
  OrderedJson choice = {{"index", 0}};
  if (chat_)
    choice["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
  else
    choice["text"] = text;
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finish_reason;
  OrderedJson all = reply_json(OrderedJson::array({std::move(choice)}), false);
  all["usage"] = usage_json(usage);
  return reply_text(all);
}

std::string CompletionReply::opening_event() const {
  return chat_ ? event_json({{"delta", {{"role", "assistant"}, {"content", ""}}}}, nullptr) : "";
}

std::string CompletionReply::text_event(const std::string& text) const {
  return event_json(chat_ ? OrderedJson{{"delta", {{"content", text}}}} : OrderedJson{{"text", text}}, nullptr);
}

std::string CompletionReply::closing_events(const std::string& finish_reason, const CompletionUsage& usage) const {
  std::string out = event_json(chat_ ? OrderedJson{{"delta", OrderedJson::object()}} : OrderedJson{{"text", ""}},
                               finish_reason.c_str());
  if (usage_) {
    OrderedJson counted = reply_json(OrderedJson::array(), true);
    counted["usage"] = usage_json(usage);
    out += event_of(counted);
  }
  return out + "data: [DONE]\n\n";
}

std::string model_json(const std::string& model, std::int64_t created) { return reply_text(model_of(model, created)); }

std::string models_json(const std::string& model, std::int64_t created) {
  return reply_text({{"object", "list"}, {"data", OrderedJson::array({model_of(model, created)})}});
}

}  // namespace ring
