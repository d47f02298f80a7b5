#include "data/chat_forms.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/check.h"
#include "core/json.h"
#include "core/yaml.h"

namespace ring {
namespace {

using OrderedJson = nlohmann::ordered_json;

bool has(const OrderedJson& object, const char* name) {
  if (!object.is_object()) return false;
  const auto found = object.find(name);
  return found != object.end() && !found->is_null();
}

// Returns the text of a member; "" if the member is missing or null. Throws Error if it is not a string.
std::string text_of(const OrderedJson& object, const char* name) {
  if (!has(object, name)) return "";
  if (!object[name].is_string()) fail("expected a string in '", name, "', got a JSON ", object[name].type_name());
  return object[name].get<std::string>();
}

struct SpeakerRole {
  std::string_view speaker;  // value of `from` in ShareGPT's format
  const char* role;
};
constexpr std::array kSpeakers{SpeakerRole{"human", "user"},
                               SpeakerRole{"user", "user"},
                               SpeakerRole{"gpt", "assistant"},
                               SpeakerRole{"chatgpt", "assistant"},
                               SpeakerRole{"model", "assistant"},
                               SpeakerRole{"assistant", "assistant"},
                               SpeakerRole{"system", "system"},
                               SpeakerRole{"tool", "tool"},
                               SpeakerRole{"observation", "tool"},
                               SpeakerRole{"function_response", "tool"},
                               SpeakerRole{"function_call", "assistant"}};

std::string role_of(const std::string& speaker, const std::string& which) {
  const auto* const known = std::ranges::find(kSpeakers, speaker, &SpeakerRole::speaker);
  if (known != kSpeakers.end()) return known->role;
  std::string names;
  for (const SpeakerRole& s : kSpeakers) names += str(names.empty() ? "" : ", ", s.speaker);
  fail(which, ": expected one of ", names, " in 'from', got ", shown(speaker));
}

// Returns the tool calls in the value of a function_call, which is JSON: {"name", "arguments"}, or a list of such
// objects.
OrderedJson calls_in(const std::string& text, const std::string& which) {
  const auto wrong = [&](const std::string& got) {
    fail(which, ": expected {\"name\": .., \"arguments\": ..} as the value of a function_call, got ", got);
  };
  OrderedJson parsed;
  try {
    parsed = parse_json<OrderedJson>(text);
  } catch (const Error&) {
    wrong(shown(text));
  }
  if (!parsed.is_array()) parsed = OrderedJson::array({parsed});
  OrderedJson calls = OrderedJson::array();
  for (const OrderedJson& call : parsed) {
    if (!has(call, "name") || !has(call, "arguments")) wrong(shown(json_text(call)));
    calls.push_back({{"type", "function"}, {"function", {{"name", call["name"]}, {"arguments", call["arguments"]}}}});
  }
  return calls;
}

bool is_from_value(const OrderedJson& m) {
  return m.is_object() && m.contains("from") && !m.contains("role") && !m.contains("content");
}

// Converts a message in ShareGPT's format. Keeps the message's other members, e.g. a weight.
OrderedJson message_of(const OrderedJson& m, const std::string& which) {
  if (!has(m, "value") || !m["from"].is_string()) fail(which, ": expected a string in 'from' and in 'value'");
  OrderedJson out = {{"role", role_of(m["from"].get<std::string>(), which)}};
  if (m["from"] == "function_call") {
    out["content"] = "";
    out["tool_calls"] = calls_in(text_of(m, "value"), which);
  } else {
    out["content"] = m["value"];
  }
  for (const auto& [name, value] : m.items())
    if (name != "from" && name != "value") out[name] = value;
  return out;
}

// Inserts the record's `system`, if any, as the first message.
OrderedJson with_system(const OrderedJson& record, OrderedJson messages) {
  const std::string system = text_of(record, "system");
  if (system.empty()) return messages;
  const bool has_own =
      !messages.empty() && messages.front().is_object() && messages.front().value("role", OrderedJson()) == "system";
  if (has_own) fail("expected one system message, got one in the list and one in 'system'");
  messages.insert(messages.begin(), OrderedJson{{"role", "system"}, {"content", system}});
  return messages;
}

OrderedJson from_list(const OrderedJson& record, const OrderedJson& list) {
  const auto first = std::ranges::find_if(list, is_from_value), last = std::ranges::find_if_not(list, is_from_value);
  if (first == list.end()) return with_system(record, list);
  if (last != list.end())
    fail("message ", first - list.begin(), " has 'from' and 'value', but message ", last - list.begin(),
         " does not. Write all messages of a list in one format");
  OrderedJson messages = OrderedJson::array();
  for (const OrderedJson& m : list) messages.push_back(message_of(m, str("message ", messages.size())));
  return with_system(record, std::move(messages));
}

// Joins instruction and input with a newline, like LLaMA-Factory ("alpaca" in its data/README.md).
OrderedJson from_instruction(const OrderedJson& record) {
  if (has(record, "history") && !record["history"].empty())
    fail("'history' is not supported. Write conversations of several turns as 'messages'");
  const std::string input = text_of(record, "input");
  std::string question = text_of(record, "instruction");
  if (!input.empty()) question += (question.empty() ? "" : "\n") + input;
  return with_system(record, OrderedJson::array({{{"role", "user"}, {"content", question}},
                                                 {{"role", "assistant"}, {"content", text_of(record, "output")}}}));
}

}  // namespace

std::vector<std::string> chat_members_of(const OrderedJson& record) {
  std::vector<std::string> found;
  for (const char* name : kChatMembers)
    if (has(record, name) && (std::string_view(name) != "instruction" || has(record, "output")))
      found.emplace_back(name);
  return found;
}

bool has_chat(const OrderedJson& record) { return !chat_members_of(record).empty(); }

OrderedJson chat_messages(const OrderedJson& record, const std::string& name, const OrderedJson& found) {
  if (found.is_array()) return from_list(record, found);
  return found.is_string() && name == "instruction" ? from_instruction(record) : found;
}

namespace {

// Returns the record's tools; a string is parsed if it contains JSON. Null if there are none.
OrderedJson tools_of(const OrderedJson& record) {
  if (has(record, "functions") && !has(record, "tools") && !record["functions"].empty())
    fail("'functions' lists tools in a form that templates do not write: give them as 'tools'");
  if (!has(record, "tools")) return nullptr;
  const OrderedJson& tools = record["tools"];
  if (!tools.is_string()) return tools;
  const std::string text = tools.get<std::string>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return nullptr;
  try {
    return parse_json<OrderedJson>(text);
  } catch (const Error&) {
    return tools;
  }
}

// Throws Error unless the member is a list of objects: a template would write the keys or characters of anything else.
void check_objects(const OrderedJson& list, const char* name) {
  if (!list.is_array()) fail("expected a list of objects in '", name, "', got a JSON ", list.type_name());
  for (const OrderedJson& item : list)
    if (!item.is_object()) fail("expected objects in the list '", name, "', got a JSON ", item.type_name());
}

}  // namespace

OrderedJson chat_variables(const OrderedJson& record) {
  for (const char* media : {"images", "videos", "audios"})
    if (has(record, media) && !record[media].empty())
      fail("the record has '", media,
           "', which a text model cannot read. Remove this member and its placeholders in the messages");
  OrderedJson variables = OrderedJson::object();
  if (has(record, "chat_template_kwargs")) {
    const OrderedJson& given = record["chat_template_kwargs"];
    if (!given.is_object()) fail("expected an object in 'chat_template_kwargs', got a JSON ", given.type_name());
    variables = given;
  }
  for (const auto& [name, value] :
       {std::pair("tools", tools_of(record)),
        std::pair("documents", has(record, "documents") ? record["documents"] : OrderedJson())}) {
    if (value.is_null()) continue;
    if (variables.contains(name)) fail("the record has '", name, "' both in and outside 'chat_template_kwargs'");
    variables[name] = value;
  }
  for (const char* name : {"tools", "documents"})
    if (has(variables, name)) check_objects(variables[name], name);
  return variables;
}

}  // namespace ring
