#include <algorithm>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <sstream>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/runs.h"
#include "cli/settings.h"
#include "cli/sweep_runner.h"
#include "cli/table.h"
#include "core/check.h"
#include "core/counted.h"
#include "core/exit_code.h"
#include "core/joined.h"
#include "core/stop_signal.h"
#include "trainer/run_summary.h"

namespace ring {
namespace {

constexpr int kMaxParallel = 256;

struct SweepArguments {
  std::string file, gpus, log_level;
  int parallel = 1;
  bool dry_run = false;
};

using Rows = std::vector<std::vector<std::string>>;

// Returns the first columns of a table's head: the run's name and the keys that the sweep varies.
std::vector<std::string> table_head(const SweepPlan& plan) {
  std::vector<std::string> head = {"run"};
  head.insert(head.end(), plan.keys.begin(), plan.keys.end());
  return head;
}

// Returns the first columns of a run's row: its name and its values of the keys.
std::vector<std::string> row_of(const SweepRun& run) {
  std::vector<std::string> row = {run.name};
  for (const std::string& s : run.settings) row.push_back(s.substr(s.find('=') + 1));
  return row;
}

std::string status_text(const RunSummary& summary) {
  if (std::filesystem::exists(summary.path)) return summary.status;
  // SweepRunner writes the log, so a log without a run means that the command ended before it began the run.
  return std::filesystem::exists(summary.path + ".log") ? kRunFailed : "-";
}

// Checks the settings of all runs before the first run starts, so that a mistake in the last run is reported
// immediately.
void check(const SweepPlan& plan) {
  if (std::filesystem::is_directory(plan.train))
    fail("train: expected a settings file, got the directory ", plan.train,
         ". A sweep starts new runs, so give their settings");
  for (const SweepRun& run : plan.runs) try {
      settings_to_train(plan.train, run.settings, false);
    } catch (const Error& e) {
      fail("run ", run.name, " (", joined(run.settings, " "), "): ", e.what());
    }
}

SweepOptions options_of(const SweepArguments& a) {
  SweepOptions o{.parallel = a.parallel, .gpus = {}, .log_level = a.log_level};
  std::istringstream list(a.gpus);
  for (std::string gpu; std::getline(list, gpu, ',');) o.gpus.push_back(gpu);
  if (std::ranges::any_of(o.gpus, &std::string::empty))
    fail("--gpus: expected a list such as 0,1,2,3, got '", a.gpus, "'");
  if (!o.gpus.empty()) o.parallel = static_cast<int>(o.gpus.size());
  return o;
}

void print_plan(const SweepPlan& plan) {
  Rows rows = {table_head(plan)};
  for (const SweepRun& run : plan.runs) rows.push_back(row_of(run));
  print_table(rows, 1);
}

// Prints the runs sorted by validation loss, or by last training loss if no run has a validation loss. Returns the
// number of finished runs.
std::size_t print_results(const SweepPlan& plan, const SweepRunner& runner) {
  std::vector<std::pair<RunSummary, const SweepRun*>> all;
  for (const SweepRun& run : plan.runs) all.emplace_back(summarize_run(runner.folder(run)), &run);
  const bool validated = std::ranges::any_of(all, [](const auto& r) { return r.first.validation_loss.has_value(); });
  std::ranges::stable_sort(all, {}, [&](const auto& r) {
    const auto loss = ascending_key(validated ? r.first.validation_loss : r.first.loss);
    return loss.value_or(std::numeric_limits<double>::infinity());  // missing losses and NaN come last
  });
  Rows rows = {table_head(plan)};
  for (const char* head : {"status", "step", "loss", "validation", "tokens/s"}) rows[0].emplace_back(head);
  for (const auto& [summary, run] : all) {
    rows.push_back(row_of(*run));
    for (const std::string& cell : {status_text(summary), str(summary.step), loss_text(summary.loss),
                                    loss_text(summary.validation_loss), speed_text(summary.tokens_per_second)})
      rows.back().push_back(cell);
  }
  print_table(rows, 1);
  return static_cast<std::size_t>(
      std::ranges::count_if(all, [](const auto& r) { return r.first.status == kRunFinished; }));
}

void sweep(const SweepArguments& a) {
  const SweepPlan plan = read_sweep(a.file);
  const SweepOptions options = options_of(a);
  check(plan);
  if (a.dry_run) return print_plan(plan);
  StopSignal signal(/*announces=*/false);  // blocks signals, so it must be created before any thread
  signal.on_steps_begin();
  SweepRunner runner(plan, options);
  runner.run([&] { return signal.requested(); });
  const std::size_t done = print_results(plan, runner);
  if (signal.requested()) {
    std::cout << "stopped early; to resume: ringmaster sweep " << a.file << std::endl;
    throw ExitCode{kExitInterrupted};
  }
  if (done < plan.runs.size())
    fail(counted(static_cast<std::int64_t>(plan.runs.size() - done), "run"), " of ", plan.runs.size(),
         " did not finish. See their logs in ", plan.directory, "; the same command tries them again");
}

}  // namespace

void add_sweep_command(Command app) {
  const Command c = app.add_subcommand("sweep", "Train one run per combination of settings, and compare them");
  auto a = std::make_shared<SweepArguments>();
  c.add_option("file", a->file, "Description of the sweep (YAML), see docs/runs.md").required().type_name("FILE");
  c.add_number("--parallel", a->parallel, "Runs at a time; they share the CPU's cores", 1, kMaxParallel).show_default();
  c.add_option("--gpus", a->gpus, "GPUs to use, with one run on each at a time, such as 0,1,2,3")
      .type_name("LIST")
      .excludes({"--parallel"});
  c.add_flag("--dry-run", a->dry_run, "Only print the planned runs");
  c.footer(
      "On Ctrl+C all runs save and stop; the same command resumes the sweep.\n"
      "Example: ringmaster sweep lr.yaml --parallel 2");
  c.set_callback([a, c] {
    const Option level = c.find_option("--log-level");  // added by add_log_levels() after this callback is set
    if (level.given()) a->log_level = level.values().front();
    sweep(*a);
  });
}

}  // namespace ring
