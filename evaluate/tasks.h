#pragma once
// Evaluates a model on tasks: questions in a file of JSON Lines.
//
//   multiple choice  acc: share of questions whose right choice has the largest log-probability given the context;
//                    acc_norm, acc_bytes: same, after division by the length of the choice without its leading space,
//                    in characters (as lm-evaluation-harness does) and in bytes
//   cloze            acc: share of questions whose right last word is what greedy decoding would write;
//                    perplexity: the exponential of the mean negative log-probability of the last words
//
// Formats and prompts are those of lm-evaluation-harness, zero-shot; see evaluate/task_formats.h.

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
// Parses "NAME=FILE". Throws Error, with `from` (an option or a key) at the start, for a different format, for a name
// with characters other than letters, digits, - and _, or for a duplicate name.
std::vector<TaskSpec> parse_tasks(const std::string& from, const std::vector<std::string>& specs);

// A question with one request per choice; the requests of a question are consecutive.
struct Question {
  std::size_t first = 0, answer = 0;      // index of the first request; index of the right choice
  std::vector<double> characters, bytes;  // length of each choice
};

struct Task {
  std::string name, format;
  bool cloze = false;
  std::vector<Question> questions;
  std::vector<Request> requests;
  std::uint64_t hash = 0;  // hash of the file
  bool garbled = false;    // true if the tokenizer lacks characters of the file
};

// Throws Error, which names the file and the line, for invalid JSON, an unknown format or a missing right answer.
Task read_task(const TaskSpec&, const Tokenizer&);

// Returns the number of requests that are longer than `context` tokens, so that their beginning is dropped.
std::int64_t count_truncated_requests(const Task&, std::int64_t context);

// Reads all tasks of parse_tasks(from, specs). warns: true to warn about tasks whose texts lose their beginning or
// contain characters that the tokenizer lacks.
std::vector<Task> read_tasks(const std::string& from, const std::vector<std::string>& specs, const Tokenizer&,
                             std::int64_t context, bool warns);

struct TaskResult {
  std::string name;
  std::int64_t questions = 0;
  // Scores by name: acc, acc_norm and acc_bytes; or perplexity and acc. If there are n > 1 questions, each share p,
  // such as acc, is followed by its standard error, such as acc_stderr: sqrt(p (1 - p) / (n - 1)).
  std::vector<std::pair<std::string, double>> values;
};
TaskResult grade_task(const Task&, const std::vector<Score>& scores);

}  // namespace ring
