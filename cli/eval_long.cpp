#include "cli/eval_long.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/command.h"
#include "cli/print.h"
#include "core/joined.h"
#include "core/log.h"
#include "evaluate/long_eval.h"
#include "evaluate/long_tasks.h"
#include "evaluate/session.h"
#include "inspect/heat_map.h"
#include "inspect/svg.h"

namespace ring {
namespace {

// Returns --lengths. By default, returns the context, half of it, a quarter and so on: up to six lengths that leave
// room for filler text around the task.
std::vector<std::int64_t> lengths_of(const LongEvalArguments& a, std::int64_t context, const LongTask& task) {
  if (!a.lengths.empty()) return a.lengths;
  const std::int64_t shortest = 2 * task.tokens_without_filler();
  std::set<std::int64_t> lengths;
  for (std::int64_t n = context; n >= shortest && lengths.size() < 6; n /= 2) lengths.insert(n);
  if (lengths.empty())
    log::warn("no ", name_of(task.kind()), " prompts: the model's context of ", context,
              " tokens is too small. With this tokenizer the prompts need at least ", shortest,
              " tokens. Set --lengths to measure longer ones anyway");
  return {lengths.begin(), lengths.end()};
}

std::vector<double> depths_of(const LongEvalArguments& a, const LongTask& task) {
  return task.kind() == LongKind::words ? std::vector<double>{0} : a.depths;
}

// Checks all prompts before anything is computed.
void check_prompts(const LongEvalArguments& a, const std::vector<std::int64_t>& lengths, const ModelConfig& m,
                   const LongTask& task) {
  if (!task.writes_everything())
    log::warn("the tokenizer lacks characters of the ", name_of(task.kind()),
              " prompts, so the model reads garbled prompts");
  for (const std::int64_t length : lengths) {
    check_length(m, "--lengths", length);
    for (const double depth : depths_of(a, task))
      for (std::int64_t t = 0; t < a.trials; ++t) task.prompt(length, depth, t);
  }
}

class LongReport {
 public:
  explicit LongReport(bool csv, bool json) : csv_(csv), json_(json) {
    if (csv) print_format("measure,length,first,last,depth,samples,exact,log_probability\n");
  }

  void positions(const std::vector<PositionBucket>& buckets, std::int64_t length) {
    double sum = 0;
    std::int64_t tokens = 0;
    if (!csv_ && !json_)
      print_format("Loss by position in windows of %lld tokens\n%16s %10s %10s\n", static_cast<long long>(length),
                   "tokens before", "loss", "tokens");
    for (const PositionBucket& b : buckets) {
      sum += b.sum;
      tokens += b.tokens;
      const auto first = static_cast<long long>(b.first + 1), last = static_cast<long long>(b.end),
                 count = static_cast<long long>(b.tokens);
      if (csv_)
        print_format("position,%lld,%lld,%lld,,%lld,,%.6f\n", static_cast<long long>(length), first, last, count,
                     -b.loss());
      if (json_) all_["positions"].push_back({{"first", first}, {"last", last}, {"loss", b.loss()}, {"tokens", count}});
      if (!csv_ && !json_)
        print_format("%16s %10.4f %10lld\n", (first == last ? str(first) : str(first, " to ", last)).c_str(), b.loss(),
                     count);
    }
    all_["length"] = length;
    all_["loss"] = sum / static_cast<double>(tokens);
    all_["tokens"] = tokens;
    if (!csv_ && !json_)
      print_format("%16s %10.4f %10lld\n", "all", sum / static_cast<double>(tokens), static_cast<long long>(tokens));
    std::fflush(stdout);
  }

  void task_head(const std::string& name) {
    all_[name] = nlohmann::json::array();
    if (!csv_ && !json_)
      print_format("\n%s: exact answers, and mean log-probability of their tokens\n%10s %8s %8s %8s %16s\n",
                   name.c_str(), "length", "depth", "trials", "exact", "log-probability");
  }

  void cell(const std::string& name, const LongCell& c) {
    const auto length = static_cast<long long>(c.length), trials = static_cast<long long>(c.trials);
    const double exact = static_cast<double>(c.exact) / static_cast<double>(c.trials);
    if (csv_)
      print_format("%s,%lld,,,%g,%lld,%.4f,%.6f\n", name.c_str(), length, c.depth, trials, exact, c.log_probability);
    if (json_)
      all_[name].push_back({{"length", length},
                            {"depth", c.depth},
                            {"trials", trials},
                            {"exact", exact},
                            {"log_probability", c.log_probability}});
    if (!csv_ && !json_)
      print_format("%10lld %8g %8lld %7.1f%% %16.4f\n", length, c.depth, trials, 100 * exact, c.log_probability);
    std::fflush(stdout);
  }

  void map(const HeatMap& m) {
    maps_.push_back(m);
    if (!csv_ && !json_) print_format("\n%s", heat_map_text(m).c_str());
  }

  void finish(const std::string& svg) const {
    if (json_) std::cout << all_ << "\n";
    if (!svg.empty()) write_svg("--svg", svg, heat_map_svg(maps_));
  }

 private:
  bool csv_, json_;
  nlohmann::json all_;
  std::vector<HeatMap> maps_;
};

// Runs one task with all lengths and depths.
void run_task(const Session& session, const LongEvalArguments& a, const LongTask& task,
              const std::vector<std::int64_t>& lengths, std::int64_t rows, LongReport& report) {
  const std::string name = name_of(task.kind());
  HeatMap map{str("Exact answers: ", name), "tokens of the prompt", "depth", {}, {}, {}};
  for (const std::int64_t n : lengths) map.columns.push_back(str(n));
  for (const double depth : depths_of(a, task))
    map.rows.push_back(task.kind() == LongKind::words ? "all" : str(depth)), map.shares.emplace_back();
  report.task_head(name);
  for (const std::int64_t n : lengths) {
    std::size_t row = 0;
    for (const double depth : depths_of(a, task)) {
      const LongCell cell =
          long_cell(*session.model, session.ctx, task, n, depth, a.trials, sequences_per_batch(rows, n));
      map.shares[row++].push_back(static_cast<double>(cell.exact) / static_cast<double>(cell.trials));
      report.cell(name, cell);
    }
  }
  report.map(map);
}

}  // namespace

void check_length(const ModelConfig& m, const char* option, std::int64_t length) {
  if (m.positions == Positions::learned && length > m.context)
    fail(option, ": expected at most ", m.context, " tokens, got ", length,
         ". The model has learned positions, and only for model.context tokens");
}

std::int64_t sequences_per_batch(std::int64_t asked, std::int64_t length) {
  return asked > 0 ? asked : std::clamp<std::int64_t>(32768 / length, 1, 32);
}

void LongEvalArguments::add_to(Command command) {
  const auto option = [&](const char* name, auto& value, const char* text, long double min, long double max) {
    return command.add_number(name, value, text, min, max).needs("--long").group("With --long");
  };
  option("--length", length, "tokens per window, which may be more than in training; 0: the context of the model", 0,
         kMaxLength);
  command.add_option("--long-tasks", tasks, "Kinds of prompts, with commas: " + joined(long_kinds(), ", "))
      .delimiter(',')
      .one_of(long_kinds())
      .show_default()
      .needs("--long")
      .group("With --long");
  command.add_option("--svg", svg, "Draw the share of exact answers by length and depth to this file")
      .type_name("FILE")
      .needs("--long")
      .group("With --long");
  option("--lengths", lengths, "Tokens of the prompts, with commas; default: the context, half of it, a quarter, ...",
         1, kMaxLength);
  option("--depths", depths, "Position of the answer in the prompt, with commas: 0 is the beginning, 1 the end", 0, 1)
      .show_default();
  option("--trials", trials, "Prompts per length and depth; 0: none", 0, 1'000'000).show_default();
  option("--seed", seed, "Random seed of the prompts", 0, kMaxSeed).show_default();
  command.add_flag("--csv", csv, "Print comma-separated values").needs("--long").group("With --long");
}

void long_eval(const Session& session, const Corpora& corpora, Split split, const LongEvalArguments& a,
               std::int64_t batches, std::int64_t rows, bool json) {
  const ModelConfig& m = session.model->config();
  const std::int64_t length = a.length ? a.length : m.context;
  check_length(m, "--length", length);
  if (!a.svg.empty()) check_svg_path("--svg", a.svg);
  std::vector<std::pair<LongTask, std::vector<std::int64_t>>> tasks;
  for (const std::string& name : a.tasks) {
    if (a.trials == 0) break;
    LongTask task(parse_long_kind(name), *session.tokenizer, a.seed);
    const std::vector<std::int64_t> lengths = lengths_of(a, m.context, task);
    check_prompts(a, lengths, m, task);
    if (!lengths.empty()) tasks.emplace_back(std::move(task), lengths);
  }
  const std::int64_t at_once = sequences_per_batch(rows, length);
  check_tokens_at_once("--batch-size", at_once, length);
  const ValidationSet set(corpora, {.context = length, .rows = at_once}, batches * at_once, split);
  LongReport report(a.csv, json);
  report.positions(losses_by_position(*session.model, session.ctx, set), length);
  for (const auto& [task, lengths] : tasks) run_task(session, a, task, lengths, rows, report);
  report.finish(a.svg);
}

}  // namespace ring
