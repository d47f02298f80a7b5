#pragma once
// Tasks: questions from a file of JSON Lines, and what a model makes of them.
//
//   multiple choice  acc: how often the right choice has the largest log-probability given the context;
//                    acc_norm, acc_bytes: the same after division by the length of the choice, without the blank in
//                    front of it, in characters (as lm-evaluation-harness does) and in bytes
//   cloze            acc: how often the right last word is what greedy decoding would write;
//                    perplexity: the exponential of the mean negative log-probability
//                    of the last words
//
// The formats and prompts are those of lm-evaluation-harness without examples in the prompt; evaluate/task_formats.h.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "evaluate/score.h"
#include "text/tokenizer.h"

namespace ring {

struct TaskSpec {
  std::string name, file;
};
// "NAME=FILE". Error, which begins with `from` (an option or a key): no such thing, a name with other characters than
// letters, digits, - and _, or a name twice.
std::vector<TaskSpec> parse_tasks(const std::string& from, const std::vector<std::string>& specs);

// A choice each is a request, those of a question follow each other.
struct Question {
  std::size_t first = 0, answer = 0;      // request, and which of the choices is right
  std::vector<double> characters, bytes;  // of the choices
};

struct Task {
  std::string name, format;
  bool cloze = false;
  std::vector<Question> questions;
  std::vector<Request> requests;
  std::uint64_t hash = 0;  // of the file
  bool garbled = false;    // the tokenizer lacks characters of it
};

// Error names the file and the line: no JSON, another format, no right answer.
Task read_task(const TaskSpec&, const Tokenizer&);

// Requests longer than so many tokens, whose beginning does not count.
std::int64_t cut_requests(const Task&, std::int64_t context);

// All of parse_tasks(from, specs). warns: of tasks that lose the beginning of texts, and of garbled ones.
std::vector<Task> read_tasks(const std::string& from, const std::vector<std::string>& specs, const Tokenizer&,
                             std::int64_t context, bool warns);

struct TaskResult {
  std::string name;
  std::int64_t questions = 0;
  // acc, acc_norm, acc_bytes, or perplexity and acc. Behind each share p its standard error, "acc_stderr":
  // sqrt(p (1 - p) / (n - 1)); of one question there is none.
  std::vector<std::pair<std::string, double>> values;
};
TaskResult judge(const Task&, const std::vector<Score>&);

}  // namespace ring
