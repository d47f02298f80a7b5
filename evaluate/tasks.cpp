#include "evaluate/tasks.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "core/counted.h"
#include "core/fields.h"
#include "core/files.h"
#include "core/log.h"
#include "data/json_lines.h"
#include "data/text_frame.h"
#include "evaluate/task_formats.h"
#include "text/chat/characters.h"
#include "text/utf8.h"

namespace ring {
namespace {

bool is_name(const std::string& text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; });
}

// Splits the tokens of context + continuation like lm-evaluation-harness: trailing space of the context, and tokens
// that span the boundary, belong to the continuation.
class Encoding {
 public:
  explicit Encoding(const Tokenizer& tokenizer)
      : encoder_(tokenizer.encoder()), before_(tokenizer.before_text()), empty_(empty_text(tokenizer)) {}

  Request operator()(std::string context, const std::string& continuation, const std::string& where) {
    const std::size_t text = chat::strip(context, false, true, nullptr).size();  // same as Python's str.rstrip()
    const std::string whole = context + continuation;
    context.resize(text);
    std::vector<std::int32_t> given;
    Request r{{}, 1};
    encoder_->encode(whole, r.tokens);
    if (!context.empty()) encoder_->encode(context, given);
    const std::span added =
        given.empty() ? std::span(empty_) : std::span(before_).first(missing_before(before_, given));
    for (auto* tokens : {&given, &r.tokens}) tokens->insert(tokens->begin(), added.begin(), added.end());
    if (given.empty()) fail(where, "the context is empty, and the tokenizer has no token to start a text with");
    if (r.tokens.size() < 2) fail(where, "the tokenizer has no token for this text");
    r.scored = static_cast<std::int64_t>(r.tokens.size()) - static_cast<std::int64_t>(given.size());
    r.scored = std::clamp<std::int64_t>(r.scored, 1, static_cast<std::int64_t>(r.tokens.size()) - 1);
    return r;
  }
  bool lossy() const { return encoder_->report().unknown + encoder_->report().invalid_bytes > 0; }

 private:
  std::unique_ptr<Encoder> encoder_;
  // before_: tokens that begin every text. empty_: tokens that stand for an empty context.
  std::vector<std::int32_t> before_, empty_;
};

void add_item(const TaskItem& item, Encoding& encode, const std::string& where, Task& task) {
  Question q{.first = task.requests.size(), .answer = item.answer, .characters = {}, .bytes = {}};
  for (const std::string& choice : item.choices) {
    task.requests.push_back(encode(item.context, " " + choice, where));
    q.characters.push_back(static_cast<double>(utf8::count_characters(choice)));
    q.bytes.push_back(static_cast<double>(choice.size()));
  }
  task.questions.push_back(std::move(q));
}

// Returns true if the right choice has the largest log-probability per unit of length. Among equal ones, the first
// counts.
bool is_right(const Question& q, const std::vector<Score>& scores, const std::vector<double>* lengths) {
  std::size_t best = 0;
  double max = -INFINITY;
  for (std::size_t i = 0; i < q.bytes.size(); ++i) {
    const double value = scores[q.first + i].log_probability / (lengths ? (*lengths)[i] : 1);
    if (value > max) max = value, best = i;
  }
  return best == q.answer;
}

void warn_of(const Task& task, std::int64_t context, const std::string& from) {
  if (const std::int64_t cut = count_truncated_requests(task, context))
    log::warn(from, ": cut ", counted(cut, "text"), " of ", task.name, " longer than ", context, " tokens to the last ",
              context, " of each");
  if (task.garbled)
    log::warn(from, ": the tokenizer lacks characters of ", task.name, ", so the model sees garbled texts");
}

void add_share(TaskResult& result, const std::string& name, std::int64_t right) {
  const double n = static_cast<double>(result.questions), p = static_cast<double>(right) / n;
  result.values.emplace_back(name, p);
  if (n > 1) result.values.emplace_back(name + "_stderr", std::sqrt(p * (1 - p) / (n - 1)));
}

}  // namespace

std::vector<TaskSpec> parse_tasks(const std::string& from, const std::vector<std::string>& specs) {
  std::vector<TaskSpec> out;
  std::set<std::string> names;
  for (const std::string& spec : specs) {
    const std::size_t at = spec.find('=');
    if (at == std::string::npos || at + 1 == spec.size() || !is_name(spec.substr(0, at)))
      fail(from, ": ", spec, " is not a task: expected NAME=FILE, with a name of letters, digits, - and _");
    out.push_back({spec.substr(0, at), spec.substr(at + 1)});
    if (!names.insert(out.back().name).second)
      fail(from, ": two tasks are called ", out.back().name, ". Give each a different name");
  }
  return out;
}

Task read_task(const TaskSpec& spec, const Tokenizer& tokenizer) {
  const std::string text = read_file(spec.file);
  Task task{.name = spec.name, .hash = hash_text(text)};
  Encoding encode(tokenizer);
  JsonLines lines(spec.file, [&](const nlohmann::ordered_json& record, const std::string& where) {
    if (task.format.empty()) task.format = task_format_of(record, where);
    add_item(parse_task_item(task.format, record, where), encode, where, task);
  });
  lines.add_block(text);
  lines.on_end_of_file();
  if (task.questions.empty())
    fail(spec.file, " contains no questions. Expected JSON Lines, with one question per line");
  task.cloze = task.format == "lambada";
  task.garbled = encode.lossy();
  return task;
}

std::int64_t count_truncated_requests(const Task& task, std::int64_t context) {
  return std::ranges::count_if(
      task.requests, [&](const Request& r) { return static_cast<std::int64_t>(r.tokens.size()) - 1 > context; });
}

std::vector<Task> read_tasks(const std::string& from, const std::vector<std::string>& specs, const Tokenizer& tokenizer,
                             std::int64_t context, bool warns) {
  std::vector<Task> tasks;
  for (const TaskSpec& spec : parse_tasks(from, specs)) {
    tasks.push_back(read_task(spec, tokenizer));
    if (warns) warn_of(tasks.back(), context, from);
  }
  return tasks;
}

TaskResult grade_task(const Task& task, const std::vector<Score>& scores) {
  RING_CHECK(scores.size() == task.requests.size(), scores.size(), " scores of ", task.requests.size(), " requests");
  TaskResult result{task.name, static_cast<std::int64_t>(task.questions.size()), {}};
  const auto count = [&](const auto& right) { return std::ranges::count_if(task.questions, right); };
  if (task.cloze) {
    double sum = 0;
    for (const Question& q : task.questions) sum += scores[q.first].log_probability;
    result.values.emplace_back("perplexity", std::exp(-sum / static_cast<double>(result.questions)));
    add_share(result, "acc", count([&](const Question& q) { return scores[q.first].greedy; }));
    return result;
  }
  add_share(result, "acc", count([&](const Question& q) { return is_right(q, scores, nullptr); }));
  add_share(result, "acc_norm", count([&](const Question& q) { return is_right(q, scores, &q.characters); }));
  add_share(result, "acc_bytes", count([&](const Question& q) { return is_right(q, scores, &q.bytes); }));
  return result;
}

}  // namespace ring
