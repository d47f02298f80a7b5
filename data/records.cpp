#include "data/records.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/byte_order_mark.h"
#include "core/check.h"
#include "core/joined.h"
#include "core/yaml.h"
#include "data/chat_forms.h"
#include "text/chat/conversation.h"
#include "text/chat/marks.h"

namespace ring {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string members_of(const OrderedJson& object) {
  std::string names;
  for (const auto& [name, value] : object.items()) names += str(names.empty() ? "" : ", ", name);
  return names.empty() ? "none" : shown(names, 200);
}

// Returns the member with this name or, if the name has a dot, the nested member; null if there is none.
const OrderedJson* member(const OrderedJson& object, std::string_view field) {
  if (!object.is_object()) return nullptr;
  if (const auto found = object.find(std::string(field)); found != object.end()) return &*found;
  const std::size_t dot = field.find('.');
  if (dot == std::string_view::npos) return nullptr;
  const auto outer = object.find(std::string(field.substr(0, dot)));
  return outer == object.end() ? nullptr : member(*outer, field.substr(dot + 1));
}

// Returns advice on how to read a different member; `option` is "" if the command has no option for it.
std::string remedy(const std::string& member, const std::string& option) {
  return option.empty() ? str("Rename the text member to '", member, "'")
                        : str("Name the member that is ", option == "--chat-field" ? "the list of messages" : "text",
                              " with ", option);
}

// Returns the option that fits the apparent contents of a record without the wanted member.
std::string better_option(const OrderedJson& record, const std::string& member, const std::string& option) {
  if (option == "--text-field" && has_chat(record)) return "--chat-field reads conversations";
  if (option == "--chat-field" && has_chat(record)) return "--chat-field without a NAME reads such conversations";
  if (option == "--text-field" && record.contains("prompt") && record.contains("completion"))
    return "For prompts and completions, data prepare has --prompt-field prompt --completion-field completion";
  return remedy(member, option);
}

const OrderedJson& needed(const OrderedJson& record, const std::string& field, const std::string& option,
                          const std::string& where) {
  const OrderedJson* found = member(record, field);
  if (!found)
    fail(where, "this record has no '", field, "'; its members are: ", members_of(record), ". ",
         better_option(record, field, option));
  return *found;
}

const std::string& text_in(const OrderedJson& record, const std::string& field, const std::string& option,
                           const std::string& where) {
  const OrderedJson& found = needed(record, field, option, where);
  if (!found.is_string())
    fail(where, "'", field, "' of this record is a JSON ", found.type_name(), ", not a string. ",
         remedy(field, option));
  return found.get_ref<const std::string&>();
}

void put_text(const RecordMembers& m, const OrderedJson& record, const std::string& where, DocumentSink& sink) {
  const std::string_view text =
      without_byte_order_marks(text_in(record, m.text, m.named_by_option ? "--text-field" : "", where));
  if (text.empty() && !m.keep_empty) return;
  if (!text.empty()) sink.add_part(text);
  sink.end();
}

void put_pair(const RecordMembers& m, const OrderedJson& record, const std::string& where, DocumentSink& sink) {
  const std::string_view prompt = without_byte_order_marks(text_in(record, m.prompt, "--prompt-field", where));
  try {
    chat::check_learned(record);
  } catch (const Error& e) {
    fail(where, e.what(), ". Fix the record or remove it");
  }
  const std::string_view completion =
      without_byte_order_marks(text_in(record, m.completion, "--completion-field", where));
  if (prompt.empty() && completion.empty()) return;
  if (!prompt.empty()) sink.add_part(prompt, false);
  if (!completion.empty()) sink.add_part(completion, true);
  sink.end();
}

// Returns the name of the member that contains the record's conversation or, for an instruction, its first message.
// Throws Error, with `where` at the start, if m.chats and the record has no such member or several.
std::string chat_member(const RecordMembers& m, const OrderedJson& record, const std::string& where) {
  if (!m.chats) return m.messages;
  const std::vector<std::string> found = chat_members_of(record);
  if (found.size() == 1) return found.front();
  if (found.empty())
    fail(where,
         "expected 'messages', 'conversations', or 'instruction' and 'output', got a record with: ", members_of(record),
         ". Name the member that is the list of messages: --chat-field NAME");
  fail(where, "this record has ", joined(found, " and "),
       ", each of which is a conversation. Name one, with --chat-field NAME, or remove the other");
}

void put_conversation(const RecordMembers& m, const OrderedJson& record, const std::string& where, DocumentSink& sink) {
  const std::string name = chat_member(m, record, where);
  const OrderedJson& found = needed(record, name, "--chat-field", where);
  std::vector<chat::Part> parts;
  try {
    chat::check_learned(record);
    parts = m.writer->parts(chat_messages(record, name, found), chat_variables(record));
  } catch (const Error& e) {
    fail(where, "'", name, "' of this record: ", e.what(), ". Fix the record or remove it");
  }
  for (const chat::Part& p : parts) sink.add_part(p.text, p.counts);
  sink.end();
}

// Returns the member of a preference record, which must be a text or a list of messages, as `form` says.
const OrderedJson& preference_member(const OrderedJson& record, const char* name, PreferenceForm form,
                                     const std::string& where) {
  const auto found = record.find(name);
  if (found == record.end())
    fail(where, "this record has no '", name, "'; its members are: ", members_of(record),
         ". Rename its members to prompt, chosen and rejected");
  const bool texts = form == PreferenceForm::text;
  if (texts ? found->is_string() : found->is_array()) return *found;
  fail(where, "'", name, "' of this record is a JSON ", found->type_name(), ", not a ",
       texts ? "string" : "list of messages", ". Fix the record",
       texts && found->is_array()     ? ", or use --preferences messages"
       : !texts && found->is_string() ? ", or use --preferences text"
                                      : "");
}

void check_answers(const OrderedJson& chosen, const OrderedJson& rejected, const std::string& where) {
  if (chosen == rejected)
    fail(where, "'chosen' and 'rejected' are equal, so nothing can be learned from this record. Remove it");
  for (const auto& [name, answer] : {std::pair("chosen", &chosen), std::pair("rejected", &rejected)})
    if (answer->empty() || *answer == "") fail(where, "'", name, "' is empty. Fix the record or remove it");
}

void put_text_preference(const OrderedJson& record, const std::string& where, DocumentSink& sink) {
  const auto text = [&](const char* name) -> const std::string& {
    return preference_member(record, name, PreferenceForm::text, where).get_ref<const std::string&>();
  };
  const std::string &prompt = text("prompt"), &chosen = text("chosen"), &rejected = text("rejected");
  check_answers(chosen, rejected, where);
  for (const std::string* answer : {&chosen, &rejected}) {
    if (!prompt.empty()) sink.add_part(prompt, false);
    sink.add_part(*answer, true);
    sink.end();
  }
}

// Returns the number of messages at the start of both lists that are equal: the prompt, if the record has no `prompt`.
std::size_t shared_messages(const OrderedJson& chosen, const OrderedJson& rejected) {
  std::size_t n = 0;
  while (n < chosen.size() && n < rejected.size() && chosen[n] == rejected[n]) ++n;
  return n;
}

// Earlier answers in the prompt are marked so that they do not count as targets.
void put_message_preference(const RecordMembers& m, const OrderedJson& record, const std::string& where,
                            DocumentSink& sink) {
  const auto list = [&](const char* name) { return preference_member(record, name, PreferenceForm::messages, where); };
  const OrderedJson answers[] = {list("chosen"), list("rejected")};
  check_answers(answers[0], answers[1], where);
  OrderedJson prompt = OrderedJson::array();
  const bool has_prompt = record.contains("prompt");
  const std::size_t shared = has_prompt ? 0 : shared_messages(answers[0], answers[1]);
  if (has_prompt) prompt = list("prompt");
  if (shared == std::min(answers[0].size(), answers[1].size()))
    fail(where, "one of 'chosen' and 'rejected' is the beginning of the other, so it has no answer. Fix the record or ",
         "remove it");
  for (std::size_t i = 0; i < shared; ++i) prompt.push_back(answers[0][i]);
  for (OrderedJson& message : prompt)
    if (message.is_object() && message.value("role", OrderedJson()) == "assistant") message["weight"] = 0;
  for (const OrderedJson& answer : answers) {
    OrderedJson messages = prompt;
    messages.insert(messages.end(), answer.begin() + static_cast<std::ptrdiff_t>(shared), answer.end());
    std::vector<chat::Part> parts;
    try {
      parts = m.writer->parts(messages, chat_variables(record));
    } catch (const Error& e) {
      fail(where, "'", &answer == answers ? "chosen" : "rejected", "' of this record: ", e.what(),
           ". Fix the record or remove it");
    }
    for (const chat::Part& p : parts) sink.add_part(p.text, p.counts);
    sink.end();
  }
}

void put_preference(const RecordMembers& m, const OrderedJson& record, const std::string& where, DocumentSink& sink) {
  if (m.preferences == PreferenceForm::text) return put_text_preference(record, where, sink);
  put_message_preference(m, record, where, sink);
}

}  // namespace

std::string RecordMembers::names() const {
  if (pairs()) return "pairs of 'prompt' with 'chosen' and 'rejected'";
  if (chats) return "conversations";
  if (!messages.empty()) return "'" + messages + "'";
  return completion.empty() ? "'" + text + "'" : "'" + prompt + "' and '" + completion + "'";
}

TakeRecord make_record_parser(const RecordMembers& m, DocumentSink& sink) {
  RING_CHECK(m.any() && (!m.conversation() || m.writer), "records without a member to read, or without a writer");
  const auto put = m.pairs()               ? put_preference
                   : m.conversation()      ? put_conversation
                   : !m.completion.empty() ? put_pair
                                           : put_text;
  return [=, &sink](const OrderedJson& record, const std::string& where) { put(m, record, where, sink); };
}

}  // namespace ring
