#include "evaluate/task_formats.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/yaml.h"
#include "text/bpe/unicode.h"
#include "text/chat/characters.h"

namespace ring {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string replaced(const std::string& text, const std::string& what, const std::string& with) {
  chat::Budget budget({});  // default limits
  return chat::replaced(text, what, with, -1, budget);
}

std::string stripped(const std::string& text) { return std::string(chat::strip(text, true, true, nullptr)); }

// A record that names its source in error messages.
class Record {
 public:
  Record(const OrderedJson& json, const std::string& where) : json_(json), where_(where) {}

  const OrderedJson& member(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end()) fail(where_, "this record has no '", name, "'");
    return *found;
  }
  std::string text(const char* name) const { return text_of(member(name), name); }
  std::string text_of(const OrderedJson& value, const char* name) const {
    if (!value.is_string()) fail(where_, "'", name, "' is a JSON ", value.type_name(), ", expected a string");
    return value.get<std::string>();
  }
  std::vector<std::string> texts(const OrderedJson& list, const char* name) const {
    if (!list.is_array() || list.empty()) fail(where_, "'", name, "' is not a list of strings");
    std::vector<std::string> out;
    for (const OrderedJson& value : list) out.push_back(text_of(value, name));
    return out;
  }
  // Returns an index below `count`, stored as a number or as a string.
  std::size_t index(const char* name, std::size_t count) const {
    const OrderedJson& value = member(name);
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    // A limit on the digits keeps std::stoul() from overflowing.
    const bool number =
        !text.empty() && text.size() < 4 && std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c); });
    if (!number || std::stoul(text) >= count)
      fail(where_, "'", name, "' is ", shown(value.dump()),
           ", expected the zero-based index of the correct choice, 0 to ", count - 1,
           text.empty() ? ". Test splits have no answers. Use the validation split" : "");
    return std::stoul(text);
  }
  [[noreturn]] void refuse(const std::string& what) const { fail(where_, what); }

 private:
  const OrderedJson& json_;
  const std::string& where_;
};

// Removes WikiHow's titles and bracketed notes from a text, like lm-evaluation-harness.
std::string without_brackets(const std::string& text) {
  std::string from = replaced(stripped(text), " [title]", ". "), out;
  for (std::size_t at = 0; at < from.size();) {
    const std::size_t end = from[at] == '[' ? from.find_first_of("]\n", at) : std::string::npos;
    if (end != std::string::npos && from[end] == ']')
      at = end + 1;
    else
      out += from[at++];
  }
  return replaced(out, "  ", " ");
}

TaskItem hellaswag(const Record& r) {
  TaskItem item;
  item.context = without_brackets(
      str(r.text("activity_label"), ": ", r.text("ctx_a"), " ", unicode::capitalized(r.text("ctx_b"))));
  for (const std::string& ending : r.texts(r.member("endings"), "endings"))
    item.choices.push_back(without_brackets(ending));
  item.answer = r.index("label", item.choices.size());
  return item;
}

// Accepts {"question": {"stem", "choices": [{"text", "label"}]}} as published, and {"question", "choices": {"text",
// "label"}} as on the hub.
TaskItem arc(const Record& r) {
  TaskItem item;
  std::vector<std::string> labels;
  if (const OrderedJson& question = r.member("question"); question.is_object()) {
    for (const OrderedJson& choice : question.value("choices", OrderedJson::array())) {
      if (!choice.is_object()) r.refuse("'question.choices' is not a list of {\"text\": .., \"label\": ..}");
      item.choices.push_back(r.text_of(choice.value("text", OrderedJson()), "choices.text"));
      labels.push_back(r.text_of(choice.value("label", OrderedJson()), "choices.label"));
    }
    item.context = r.text_of(question.value("stem", OrderedJson()), "question.stem");
  } else {
    const OrderedJson& choices = r.member("choices");
    if (!choices.is_object()) r.refuse("'choices' of ARC is not {\"text\": [..], \"label\": [..]}");
    item.choices = r.texts(choices.value("text", OrderedJson()), "choices.text");
    labels = r.texts(choices.value("label", OrderedJson()), "choices.label");
    item.context = r.text("question");
  }
  item.context = "Question: " + item.context + "\nAnswer:";
  const auto right = std::ranges::find(labels, r.text("answerKey"));
  if (labels.size() != item.choices.size() || right == labels.end())
    r.refuse("'answerKey' is not the label of a choice");
  item.answer = static_cast<std::size_t>(right - labels.begin());
  return item;
}

TaskItem mmlu(const Record& r) {
  const std::vector<std::string> answers = r.texts(r.member("choices"), "choices");
  if (answers.size() > 26) r.refuse("'choices' has more entries than there are letters");
  TaskItem item;
  if (const std::string subject = replaced(r.text("subject"), "_", " "); !subject.empty())
    item.context = "The following are multiple choice questions (with answers) about " + subject + ".\n\n";
  item.context += stripped(r.text("question")) + "\n";
  for (std::size_t i = 0; i < answers.size(); ++i) {
    item.choices.emplace_back(1, static_cast<char>('A' + i));
    item.context += item.choices.back() + ". " + answers[i] + "\n";
  }
  item.context += "Answer:";
  item.answer = r.index("answer", answers.size());
  return item;
}

TaskItem lambada(const Record& r) {
  const std::string text = r.text("text");
  const std::size_t blank = text.find_last_of(' ');
  if (blank == std::string::npos || blank + 1 == text.size()) r.refuse("'text' has no last word after a blank");
  return {text.substr(0, blank), {text.substr(blank + 1)}, 0};
}

TaskItem plain(const Record& r) {
  TaskItem item{r.text("context"), r.texts(r.member("choices"), "choices"), 0};
  const OrderedJson& answer = r.member("answer");
  const auto right =
      answer.is_string() ? std::ranges::find(item.choices, answer.get<std::string>()) : item.choices.end();
  item.answer = right != item.choices.end() ? static_cast<std::size_t>(right - item.choices.begin())
                                            : r.index("answer", item.choices.size());
  return item;
}

struct Format {
  const char* name;
  std::vector<const char*> members;
  TaskItem (*item)(const Record&);
};

// A record has the first format whose members it contains. lambada is last, because many records have a "text".
const std::vector<Format>& formats() {
  static const std::vector<Format> all = {{"hellaswag", {"activity_label", "ctx_a", "endings"}, hellaswag},
                                          {"arc", {"question", "answerKey"}, arc},
                                          {"mmlu", {"question", "choices", "answer", "subject"}, mmlu},
                                          {"plain", {"context", "choices", "answer"}, plain},
                                          {"lambada", {"text"}, lambada}};
  return all;
}

}  // namespace

std::string task_format_of(const OrderedJson& record, const std::string& where) {
  for (const Format& f : formats())
    if (std::ranges::all_of(f.members, [&](const char* name) { return record.contains(name); })) return f.name;
  std::string known;
  for (const Format& f : formats()) {
    known += str("\n  ", f.name, ":");
    for (const char* name : f.members) known += str(" ", name);
  }
  fail(where, "this record matches no known task format. Each format is recognized by these members:", known);
}

TaskItem parse_task_item(const std::string& format, const OrderedJson& record, const std::string& where) {
  const auto found = std::ranges::find(formats(), format, [](const Format& f) { return std::string(f.name); });
  RING_CHECK(found != formats().end(), "a task of format ", format);
  TaskItem item = found->item(Record(record, where));
  if (std::ranges::any_of(item.choices, &std::string::empty)) fail(where, "a choice is empty");
  return item;
}

}  // namespace ring
