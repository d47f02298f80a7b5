#include "cli/sweep_runner.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/log_level.h"
#include "core/check.h"
#include "core/cpu/thread_pool.h"
#include "core/exit_code.h"
#include "core/joined.h"
#include "core/json.h"
#include "core/log.h"
#include "core/text_file.h"
#include "data/output_file.h"
#include "job/secret.h"
#include "trainer/run_summary.h"

namespace ring {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kMaxPlanBytes = 64 << 20;
constexpr std::chrono::milliseconds kLook{50};

OrderedJson json_of(const SweepPlan& plan) {
  OrderedJson runs = OrderedJson::array();
  for (const SweepRun& r : plan.runs) runs.push_back({{"name", r.name}, {"settings", r.settings}});
  return {{"train", plan.train}, {"runs", runs}};
}

// Returns null if `text` is not JSON.
OrderedJson parsed(const std::string& text) {
  try {
    return parse_json<OrderedJson>(text);
  } catch (const JsonStopped&) {
    throw;
  } catch (const Error&) {
    return nullptr;
  }
}

// Returns true if `now` has the same settings file and begins with the runs of `before`.
bool goes_on_with(const OrderedJson& before, const OrderedJson& now) {
  if (!before.is_object() || !before.contains("runs") || before.value("train", OrderedJson()) != now["train"])
    return false;
  const OrderedJson& runs = before["runs"];
  return runs.is_array() && runs.size() <= now["runs"].size() &&
         std::equal(runs.begin(), runs.end(), now["runs"].begin());
}

// Makes each run a single process, whatever environment the sweep was started in.
const Environment kAlone = {{"RINGMASTER_RANK", "0"},
                            {"RINGMASTER_WORLD", "1"},
                            {"RINGMASTER_LOCAL_RANK", "0"},
                            {"RINGMASTER_LOCAL_WORLD", "1"}};

}  // namespace

SweepRunner::SweepRunner(const SweepPlan& plan, const SweepOptions& options)
    : plan_(plan), options_(options), slots_(static_cast<std::size_t>(options.parallel)) {
  std::error_code error;
  std::filesystem::create_directories(plan.directory, error);
  if (error) fail("directory: cannot create '", plan.directory, "': ", error.message());
  save_state();
}

void SweepRunner::save_state() const {
  const std::string file = plan_.directory + "/sweep.json";
  const OrderedJson now = json_of(plan_);
  if (std::filesystem::exists(file) && !goes_on_with(parsed(read_text_file(file, kMaxPlanBytes)), now))
    fail(file, ": this directory was started with other runs. Give another `directory`, or remove this one");
  write_whole(file, json_text(now, 1) + "\n");
}

void SweepRunner::start_run(const SweepRun& run, std::size_t slot) {
  std::vector<std::string> words = {"train", plan_.train, "run.directory=" + folder(run), "run.name=" + run.name};
  words.insert(words.end(), run.settings.begin(), run.settings.end());
  add_log_level_arguments(options_.log_level, words);
  words.insert(words.begin(), "ringmaster");
  WorkerCommand c{.program = "/proc/self/exe", .arguments = words, .environment = current_environment()};
  for (const auto& [name, value] : kAlone) c.environment[name] = value;
  c.environment["RINGMASTER_THREADS"] = std::to_string(std::max(1, default_threads() / options_.parallel));
  if (!options_.gpus.empty()) c.environment["CUDA_VISIBLE_DEVICES"] = options_.gpus[slot];
  log::info("run ", run.name, " starts: ", joined(run.settings, " "));
  slots_[slot] = {run.name, std::make_unique<Worker>(0, c, std::make_unique<SharedStatus>(random_cookie()), "", -1,
                                                     folder(run) + ".log")};
}

bool SweepRunner::watch() {
  bool any = false;
  for (Slot& s : slots_) {
    if (!s.worker) continue;
    s.worker->output().drain();
    any = true;
    if (!s.worker->reap()) continue;
    s.worker->output().finish();
    const Ending end = *s.worker->ending();
    if (end.ok())
      log::info("run ", s.name, " is done");
    else if (end.exit_code() == kExitInterrupted)
      log::info("run ", s.name, " saved and stopped");
    else
      log::warn("run ", s.name, " ", describe(end), "; see ", plan_.directory, "/", s.name, ".log");
    s.worker.reset();
  }
  return any;
}

void SweepRunner::run(const std::function<bool()>& stop) {
  auto next = plan_.runs.begin();
  bool stop_announced = false;
  for (;; std::this_thread::sleep_for(kLook)) {
    if (stop() && !std::exchange(stop_announced, true))
      for (Slot& s : slots_)
        if (s.worker) s.worker->signal(SIGTERM);
    for (std::size_t i = 0; i < slots_.size() && !stop_announced; ++i)
      while (!slots_[i].worker && next != plan_.runs.end()) {
        const SweepRun& run = *next++;
        if (summarize_run(folder(run)).status != kRunFinished) start_run(run, i);
      }
    if (!watch() && (stop_announced || next == plan_.runs.end())) return;
  }
}

}  // namespace ring
