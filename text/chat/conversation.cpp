#include "text/chat/conversation.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/json.h"
#include "text/chat/characters.h"
#include "text/chat/marks.h"
#include "text/utf8.h"

namespace ring::chat {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string role_of(const Value& message) { return message.members().find("role")->text(); }

bool has_calls(const OrderedJson& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && !calls->is_null() && !calls->empty();
}

// Returns the concatenated text of content that is a list. Throws Error if a part is not text.
std::string text_of_parts(const OrderedJson& content, const std::string& which) {
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const OrderedJson& part = content[i];
    const bool is_text = part.is_object() && part.value("type", OrderedJson("text")) == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) fail(which, ": part ", i, " of its 'content' is not text. Only text is supported");
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

// Throws Error if a message or record has a non-empty member `key` that the template's source never mentions.
void check_written(const OrderedJson& object, const char* key, const std::string& which, const std::string& source) {
  const auto value = object.find(key);
  if (value == object.end() || value->is_null() || value->empty() || *value == "") return;
  if (source.find(key) == std::string::npos)
    fail(which, " has '", key, "', but the template does not write it. Use a template that does: --chat-template");
}

// Throws Error if the object has the member `former`, which OpenAI has replaced by `now` and which no template writes.
void refuse_former(const OrderedJson& object, const char* former, const char* now, const std::string& which) {
  if (const auto value = object.find(former); value != object.end() && !value->empty())
    fail(which, " has '", former, "', which templates do not write: give it as '", now, "'");
}

// Throws Error if the template would omit a part of the message, or write it in Python's notation.
void check_message(const OrderedJson& m, const std::string& which, const std::string& source) {
  if (!m.is_object()) fail(which, ": expected an object with 'role' and 'content', got a JSON ", m.type_name());
  if (!m.contains("role")) fail(which, " has no 'role'");
  if (!m["role"].is_string()) fail(which, ": expected a string in 'role', got a JSON ", m["role"].type_name());
  if (m.contains("tool_calls") && !m["tool_calls"].is_array() && !m["tool_calls"].is_null())
    fail(which, ": expected a list in 'tool_calls', got a JSON ", m["tool_calls"].type_name());
  for (const char* key : {"tool_calls", "reasoning_content", "thinking", "reasoning", "thinking_blocks",
                          "reasoning_details", "audio", "images", "videos"})
    check_written(m, key, which, source);
  refuse_former(m, "function_call", "tool_calls", which);
  const auto content = m.find("content");
  if (content == m.end() || content->is_null()) {
    if (!has_calls(m)) fail(which, " has no 'content'", content == m.end() ? "" : ": it is null");
    return;
  }
  if (!content->is_string() && !content->is_array())
    fail(which, ": expected a string or a list of texts in 'content', got a JSON ", content->type_name());
}

// Decodes call arguments that are a string with a JSON object inside: replaces the string by the object if `written`,
// the conversation's text, contains the string as JSON, in quotes. Returns true if it replaced any.
bool decode_arguments(OrderedJson& message, const std::string& written) {
  if (!has_calls(message)) return false;
  bool decoded = false;
  for (OrderedJson& call : message["tool_calls"]) {
    if (!call.is_object()) continue;
    OrderedJson& function = call.contains("function") && call["function"].is_object() ? call["function"] : call;
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    const std::string quoted = ring::json_text(function["arguments"]);
    if (find_part(written, quoted) == std::string::npos) continue;
    OrderedJson arguments;
    try {
      arguments = parse_json<OrderedJson>(function["arguments"].get_ref<const std::string&>());
    } catch (const Error&) {
      continue;  // the string does not contain JSON
    }
    if (!arguments.is_object()) continue;
    function["arguments"] = std::move(arguments);
    decoded = true;
  }
  return decoded;
}

// Returns how many leading bytes of an assistant's turn the model is trained on: all except white space after the text
// that ends the turn.
std::size_t counted(const std::string& turn, const Value& message) {
  const Value* content = message.members().find("content");
  const std::string said(content && content->is_text() ? strip(content->text(), true, true, nullptr) : "");
  const std::size_t at = said.empty() ? std::string::npos : find_part(turn, said);
  const std::size_t end = at == std::string::npos ? 0 : at + said.size();
  const std::string_view mark = strip(std::string_view(turn).substr(end), false, true, nullptr);
  return mark.empty() ? turn.size() : end + mark.size();
}

// Returns a message that says where two texts begin to differ, with a quotation of whole characters from both.
std::string difference(const std::string& a, const std::string& b) {
  auto at = static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  while (at > 0 && at < a.size() && utf8::is_continuation(a[at])) --at;
  const auto from = [&](const std::string& t) {
    const std::string part = t.substr(std::min(at, t.size()), 30);
    return "'" + part.substr(0, utf8::valid_prefix_length(part)) + "'";
  };
  return str("from byte ", at, " on, ", from(a), " became ", from(b));
}

// Splits a text into parts. The model is trained on the parts that `spans` lists.
std::vector<Part> cut(const std::string& text, const std::vector<std::pair<std::size_t, std::size_t>>& spans) {
  std::vector<Part> parts;
  std::size_t at = 0;
  const auto add = [&](std::size_t end, bool counts) {
    if (end > at) parts.push_back({text.substr(at, end - at), counts});
    at = end;
  };
  for (const auto& [begin, end] : spans) add(begin, false), add(end, true);
  add(text.size(), false);
  return parts;
}

OrderedJson text_parts(const std::string& text) { return OrderedJson::array({{{"type", "text"}, {"text", text}}}); }

constexpr const char* kRemedy =
    ". The assistants' turns cannot be found in such a text. Use a template that marks them with {% generation %}, or "
    "a different one: --chat-template";

}  // namespace

ConversationWriter::ConversationWriter(Format format, const std::string& name, const Limits& limits)
    : format_(std::move(format)), template_(format_.source, name), limits_(limits) {
  constexpr const char* kText = "ringmasterasks";
  reads_parts_ = writes_text(text_parts(kText), kText);
  reads_strings_ = !reads_parts_ || writes_text(kText, kText);
}

// A template that writes the list itself, in Python or JSON notation, counts as one that does not read lists.
bool ConversationWriter::writes_text(const OrderedJson& content, std::string_view text) const {
  const OrderedJson message = {{"role", "user"}, {"content", content}};
  try {
    const std::string written = write({from_json(message)}, 1, {}, false).text;
    const auto has = [&](std::string_view part) { return written.find(part) != std::string::npos; };
    return has(text) && !has("'type': 'text'") && !has("\"type\": \"text\"") && !has("\"type\":\"text\"");
  } catch (const Error&) {
    return false;
  }
}

std::vector<Value> ConversationWriter::message_values(const OrderedJson& messages) const {
  if (!messages.is_array()) fail("expected a list of messages, got a JSON ", messages.type_name());
  if (messages.empty()) fail("the list of messages is empty");
  std::vector<Value> out;
  for (const OrderedJson& m : messages) {
    const std::string which = str("message ", out.size());
    check_message(m, which, format_.source);
    const bool parts = m.contains("content") && m["content"].is_array();
    const std::string text = parts ? text_of_parts(m["content"], which) : "";
    OrderedJson as_read = m;
    if (parts && !reads_parts_) as_read["content"] = text;
    if (!reads_strings_ && m.contains("content") && m["content"].is_string())
      as_read["content"] = text_parts(m["content"].get<std::string>());
    out.push_back(from_json(as_read));
  }
  return out;
}

ConversationWriter::Whole ConversationWriter::write_whole(const OrderedJson& list, std::vector<Value> messages,
                                                          const std::vector<Member>& given, bool ask) const {
  Whole whole{.messages = std::move(messages), .rendered = {}};
  whole.rendered = write(whole.messages, whole.messages.size(), given, ask);
  if (std::ranges::none_of(list, has_calls)) return whole;
  OrderedJson decoded = list;
  bool changed = false;
  for (OrderedJson& m : decoded) changed |= decode_arguments(m, whole.rendered.text);
  if (!changed) return whole;
  whole.messages = message_values(decoded);
  whole.rendered = write(whole.messages, whole.messages.size(), given, ask, whole.rendered.steps);
  return whole;
}

Rendered ConversationWriter::write(const std::vector<Value>& messages, std::size_t count,
                                   const std::vector<Member>& given, bool ask, std::size_t spent) const {
  std::vector<Value> some(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(count));
  std::vector<Member> variables{{"messages", Value::list(std::move(some))}, {"add_generation_prompt", ask}};
  for (const auto& [name, text] : format_.tokens) variables.emplace_back(name, text);
  for (const char* name : {"tools", "documents"})
    if (std::ranges::find(given, name, &Member::first) == given.end()) variables.emplace_back(name, None{});
  variables.insert(variables.end(), given.begin(), given.end());
  return template_.render(std::move(variables), limits_, spent);
}

ConversationWriter::Spans ConversationWriter::turns(const std::vector<Value>& messages,
                                                    const std::vector<Member>& given, const Rendered& rendered,
                                                    bool asks) const {
  if (template_.marks_generation()) return rendered.generations;
  const std::string& whole = rendered.text;
  std::size_t steps = rendered.steps;
  const auto written = [&](std::size_t count, bool ask) {
    Rendered r = write(messages, count, given, ask, steps);
    steps = r.steps;
    return std::move(r.text);
  };
  Spans spans;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (role_of(messages[i]) != "assistant") continue;
    if (i == 0) fail("the conversation begins with an assistant message", kRemedy);
    const std::string before = written(i, true);
    if (!whole.starts_with(before))
      fail("the template writes the ", i, " messages before message ", i,
           " differently when it follows: ", difference(before, whole), kRemedy);
    const std::string with = i + 1 == messages.size() && !asks ? whole : written(i + 1, false);
    if (!whole.starts_with(with))
      fail("the template writes message ", i, " differently when other messages follow: ", difference(with, whole),
           kRemedy);
    if (with.size() <= before.size()) fail("the template writes nothing for message ", i, kRemedy);
    spans.emplace_back(before.size(), before.size() + counted(with.substr(before.size()), messages[i]));
  }
  return spans;
}

// Returns `given` as variables. Throws Error if the template would omit a part of the conversation, or if a name is
// reserved.
std::vector<Member> ConversationWriter::checked_variables(const OrderedJson& given) const {
  std::vector<Member> variables;
  if (given.is_null()) return variables;
  for (const char* name : {"tools", "documents"}) check_written(given, name, "the record", format_.source);
  for (const auto& [name, value] : given.items()) {
    if (name == "messages" || name == "add_generation_prompt" ||
        std::ranges::find(format_.tokens, name, &std::pair<std::string, std::string>::first) != format_.tokens.end())
      fail("'", name, "' is set automatically; a conversation cannot define it");
    variables.emplace_back(name, from_json(value));
  }
  return variables;
}

std::vector<Part> ConversationWriter::parts(const OrderedJson& list, const OrderedJson& given) const {
  std::vector<Value> messages = message_values(list);
  if (std::ranges::none_of(messages, [](const Value& m) { return role_of(m) == "assistant"; }))
    fail("no message has the role 'assistant': nothing of this conversation would be learned");
  const std::vector<Member> variables = checked_variables(given);
  const Whole whole = write_whole(list, std::move(messages), variables, false);
  const Spans spans = turns(whole.messages, variables, whole.rendered, false);
  if (spans.empty()) fail("the template has {% generation %}, but marks no text of this conversation with it");
  return cut(whole.rendered.text, learned_spans(list, spans));
}

// If an assistant's message is excluded from training, requires one span for each assistant's message.
ConversationWriter::Spans ConversationWriter::learned_spans(const OrderedJson& list, const Spans& spans) const {
  std::vector<bool> wanted;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string name = str("message ", i);
    if (list[i]["role"] == "assistant")
      wanted.push_back(is_learned(list[i], name));
    else
      check_not_learned(list[i], name);
  }
  if (std::ranges::count(wanted, false) == 0) return spans;
  if (std::ranges::count(wanted, true) == 0) fail("every assistant message is excluded from training");
  if (spans.size() != wanted.size())
    fail("cannot exclude a message from training: the template marks ", spans.size(),
         " texts with {% generation %}, but the conversation has ", wanted.size(),
         " assistant messages. Use a different template: --chat-template");
  Spans out;
  for (std::size_t i = 0; i < spans.size(); ++i)
    if (wanted[i]) out.push_back(spans[i]);
  return out;
}

std::vector<Part> ConversationWriter::prompt(const OrderedJson& list, const OrderedJson& given,
                                             const std::function<void(const std::string&)>& on_rendered) const {
  const std::vector<Member> variables = checked_variables(given);
  const Whole whole = write_whole(list, message_values(list), variables, true);
  const std::string& text = whole.rendered.text;
  if (on_rendered) on_rendered(text);
  try {
    return cut(text, turns(whole.messages, variables, whole.rendered, true));
  } catch (const Error&) {
    // The answers cannot be found, so no corpus contains such a conversation, and no training data determines how its
    // tokens are split.
    return cut(text, {});
  }
}

std::string ConversationWriter::end_of_answer() const {
  static const std::string answer = "ringmasteranswers", next = "ringmasterasks";
  OrderedJson list = {{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", answer}}};
  const auto behind = [&] {
    const std::vector<Value> messages = message_values(list);
    const std::string text = write(messages, messages.size(), {}, false).text;
    const std::size_t at = text.rfind(answer);
    return at == std::string::npos ? "" : text.substr(at + answer.size());
  };
  const std::string rest = behind();
  if (const std::string_view mark = strip(rest, true, true, nullptr); !mark.empty()) return std::string(mark);
  list.push_back({{"role", "user"}, {"content", next}});
  const std::string between = behind();
  const std::size_t end = between.find(next);
  return end == std::string::npos ? "" : std::string(strip(between.substr(0, end), false, true, nullptr));
}

}  // namespace ring::chat
