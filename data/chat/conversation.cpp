#include "data/chat/conversation.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "data/chat/characters.h"

namespace ring::chat {
namespace {

using Json = nlohmann::ordered_json;

std::string role_of(const Value& message) { return message.members().find("role")->text(); }

std::vector<Value> checked_messages(const Json& messages) {
  if (!messages.is_array()) fail("the messages are a JSON ", messages.type_name(), ", a list is wanted");
  if (messages.empty()) fail("the list of messages is empty");
  std::vector<Value> out;
  for (const Json& m : messages) {
    const std::string which = str("message ", out.size());
    if (!m.is_object()) fail(which, " is a JSON ", m.type_name(), ", an object with 'role' and 'content' is wanted");
    if (!m.contains("role")) fail(which, " has no 'role'");
    if (!m["role"].is_string()) fail(which, ": its 'role' is a JSON ", m["role"].type_name(), ", a text is wanted");
    if (!m.contains("content") && !m.contains("tool_calls")) fail(which, " has no 'content'");
    out.push_back(from_json(m));
  }
  return out;
}

// How much of an assistant's turn counts: all of it, without blank space behind a mark that follows the content.
std::size_t counted(const std::string& turn, const Value& message) {
  const Value* content = message.members().find("content");
  const std::string said(content && content->is_text() ? strip(content->text(), true, true, nullptr) : "");
  const std::size_t at = find_part(turn, said);
  if (said.empty() || at == std::string::npos) return turn.size();
  const std::size_t end = at + said.size();
  const std::string_view mark = strip(std::string_view(turn).substr(end), false, true, nullptr);
  return mark.empty() ? turn.size() : end + mark.size();
}

// Where two texts begin to differ, for people.
std::string difference(const std::string& a, const std::string& b) {
  const auto at = static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  const auto from = [&](const std::string& t) { return "'" + t.substr(std::min(at, t.size()), 30) + "'"; };
  return str("from byte ", at, " on ", from(a), " became ", from(b));
}

// A text by its spans, which count.
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

constexpr const char* kRemedy =
    "; its assistants' turns cannot be told from the rest: give a template that marks them with {% generation %}, or "
    "another one, with --chat-template";

}  // namespace

ConversationWriter::ConversationWriter(Format format, const std::string& name, const Limits& limits)
    : format_(std::move(format)), template_(format_.source, name), limits_(limits) {}

Rendered ConversationWriter::write(const std::vector<Value>& messages, std::size_t count, const Value& tools, bool ask,
                                   std::size_t spent) const {
  std::vector<Value> some(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(count));
  std::vector<Member> variables{{"messages", Value::list(std::move(some))},
                                {"tools", tools},
                                {"documents", None{}},
                                {"add_generation_prompt", ask}};
  for (const auto& [name, text] : format_.tokens) variables.emplace_back(name, text);
  return template_.render(std::move(variables), limits_, spent);
}

ConversationWriter::Spans ConversationWriter::turns(const std::vector<Value>& messages, const Value& tools,
                                                    const Rendered& rendered, bool asks) const {
  if (template_.marks_generation()) return rendered.generations;
  const std::string& whole = rendered.text;
  std::size_t steps = rendered.steps;
  const auto written = [&](std::size_t count, bool ask) {
    Rendered r = write(messages, count, tools, ask, steps);
    steps = r.steps;
    return std::move(r.text);
  };
  Spans spans;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (role_of(messages[i]) != "assistant") continue;
    if (i == 0) fail("the conversation begins with an assistant", kRemedy);
    const std::string before = written(i, true);
    if (!whole.starts_with(before))
      fail("the template writes the ", i, " messages before message ", i,
           " differently when it follows: ", difference(before, whole), kRemedy);
    const std::string with = i + 1 == messages.size() && !asks ? whole : written(i + 1, false);
    if (!whole.starts_with(with))
      fail("the template writes message ", i, " differently when others follow: ", difference(with, whole), kRemedy);
    if (with.size() <= before.size()) fail("the template writes nothing for message ", i, kRemedy);
    spans.emplace_back(before.size(), before.size() + counted(with.substr(before.size()), messages[i]));
  }
  return spans;
}

std::vector<Part> ConversationWriter::parts(const Json& list, const Json& tools) const {
  const std::vector<Value> messages = checked_messages(list);
  if (std::ranges::none_of(messages, [](const Value& m) { return role_of(m) == "assistant"; }))
    fail("no message has the role 'assistant': nothing of this conversation would be learned");
  const Value given = from_json(tools);
  const Rendered whole = write(messages, messages.size(), given, false);
  const Spans spans = turns(messages, given, whole, false);
  if (spans.empty()) fail("the template marks nothing of this conversation with {% generation %}");
  return cut(whole.text, spans);
}

std::vector<Part> ConversationWriter::prompt(const Json& list, const Json& tools,
                                             const std::function<void(const std::string&)>& look) const {
  const std::vector<Value> messages = checked_messages(list);
  const Value given = from_json(tools);
  const Rendered whole = write(messages, messages.size(), given, true);
  if (look) look(whole.text);
  try {
    return cut(whole.text, turns(messages, given, whole, true));
  } catch (const Error&) {  // no corpus holds such a conversation, so nothing says how its tokens would be cut
    return cut(whole.text, {});
  }
}

std::string ConversationWriter::end_of_answer() const {
  static const std::string answer = "ringmasteranswers", next = "ringmasterasks";
  Json list = {{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", answer}}};
  const auto behind = [&] {
    const std::vector<Value> messages = checked_messages(list);
    const std::string text = write(messages, messages.size(), from_json(Json()), false).text;
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
