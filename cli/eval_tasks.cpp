#include "cli/eval_tasks.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/data_text.h"
#include "cli/eval_long.h"
#include "cli/table.h"
#include "comm/mesh/mesh.h"
#include "core/counted.h"
#include "core/log.h"
#include "engine/config.h"
#include "evaluate/session.h"
#include "evaluate/tasks.h"

namespace ring {
namespace {

constexpr std::int64_t kPackedRow = 2048;  // number of tokens in a row into which short questions are packed

std::int64_t longest_of(const Task& task) {
  std::size_t max = 0;
  for (const Request& r : task.requests) max = std::max(max, r.tokens.size() - 1);
  return static_cast<std::int64_t>(max);
}

ScoreOptions options_of(const Task& task, std::int64_t context, std::int64_t rows) {
  ScoreOptions options;
  options.row = std::min(context, std::max(longest_of(task), kPackedRow));
  options.rows = sequences_per_batch(rows, options.row);
  check_tokens_at_once("--batch-size", options.rows, options.row);
  return options;
}

// Adds one row per metric; the first row also has the task's name and the number of questions.
void add_rows(const TaskResult& r, std::vector<std::vector<std::string>>& rows) {
  for (std::size_t i = 0; i < r.values.size(); ++i) {
    const auto& [name, value] = r.values[i];
    const bool error = i + 1 < r.values.size() && r.values[i + 1].first == name + "_stderr";
    rows.push_back({i ? "" : r.name, name, format_fixed(value, 4), error ? format_fixed(r.values[i + 1].second, 4) : "",
                    i ? "" : std::to_string(r.questions)});
    i += error;
  }
}

}  // namespace

nlohmann::ordered_json evaluate_tasks(const Session& session, const std::vector<std::string>& specs,
                                      std::int64_t context, std::int64_t rows, bool quiet) {
  const ModelConfig& model = session.model->config();
  if (!context) context = model.context;
  const std::vector<Task> tasks = read_tasks("--task", specs, *session.tokenizer, context, true);
  const std::unique_ptr<Mesh> alone = mesh_of_one();
  std::vector<std::vector<std::string>> table = {{"task", "metric", "value", "stderr", "questions"}};
  nlohmann::ordered_json json;
  for (const Task& task : tasks) {
    const ScoreOptions options = options_of(task, context, rows);
    const TaskResult r = grade_task(task, score(*session.model, session.ctx, task.requests, options, alone->host()));
    add_rows(r, table);
    nlohmann::ordered_json& entry = json[r.name] = {{"format", task.format}, {"questions", r.questions}};
    for (const auto& [name, value] : r.values) entry[name] = value;
  }
  if (!quiet) print_table(table, 2);
  return {{"tasks", json}, {"checkpoint", session.origin.checkpoint}};
}

}  // namespace ring
