#include "trainer/run_summary.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <filesystem>

#include "core/check.h"
#include "core/counted.h"
#include "core/quantile.h"
#include "engine/run_directory.h"
#include "trainer/folder_name.h"
#include "trainer/metrics.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxFolderDepth = 6;  // maximum depth of nested folders

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

void add_note(RunSummary& run, const std::string& note) { run.note += (run.note.empty() ? "" : "; ") + note; }

// Collects a summary from the records of a run.
class History {
 public:
  explicit History(RunSummary& run) : run_(run) {}

  void add(const Record& r) {
    last_time_ = std::max(last_time_, r.time);
    if (r.group == "train") add_step(r);
    if (r.group == "validation") add_validation(r);
    add_progress(r);
    count_restarts(r);
    if (r.group == "start") add_start(r);
    if (r.group == "job") job_end_ = r;
    if (r.group != "job" && r.group != "checkpoint") job_end_.reset();  // the job goes on, or a new job began
    if (r.group == "job") run_.goodput = r.number("goodput");
  }

  void finish(double now, bool in_use) {
    if (!speeds_.empty()) run_.tokens_per_second = median({speeds_.begin(), speeds_.end()});
    if (last_time_ > 0) run_.age = std::max(0.0, now - last_time_);
    run_.status = in_use ? kRunRunning : status();
  }

 private:
  // Records of steps, starts and ends give the current step, even if it is lower than before. Records of saves and
  // validations only raise it, since a save may be recorded some steps later. A record "kept" means that the launcher
  // holds a snapshot of the step.
  void add_progress(const Record& r) {
    const std::int64_t step = std::max<std::int64_t>(r.step, 0);
    const bool saved = (r.group == "checkpoint" && !r.find("error")) || r.group == "kept";
    if (r.group == "train" || r.group == "start" || r.group == "job") run_.step = step;
    if (saved || r.group == "validation") run_.step = std::max(run_.step, step);
  }
  void add_step(const Record& r) {
    run_.loss = r.number("loss");
    if (const auto peak = r.number("memory_peak")) run_.memory_peak = std::max(run_.memory_peak.value_or(0), *peak);
    const auto speed = r.number("tokens_per_second");
    if (speed && std::isfinite(*speed)) speeds_.push_back(*speed);
    if (speeds_.size() > kLastRecords) speeds_.pop_front();
  }
  void add_validation(const Record& r) {
    const auto loss = r.number("loss");
    std::optional<double>& lowest = run_.validation_loss;
    if (loss && (!lowest || std::isnan(*lowest) || *loss < *lowest)) lowest = loss;
  }
  // `restarts` in a record counts the restarts of the record's job so far. A process that a launcher restarted records
  // this after its start, or after the memory record that follows the start; any other start begins a new job.
  void count_restarts(const Record& r) {
    if (r.group == "memory") return;
    if (last_was_start_ && r.group != "restart") counted_restarts_ = 0;
    last_was_start_ = r.group == "start";
    if (r.group != "restart" && r.group != "job") return;
    const std::int64_t n = count(r, "restarts");
    run_.restarts += n >= counted_restarts_ ? n - counted_restarts_ : n;  // a smaller number belongs to a new job
    // A failed process may be restarted by its launcher: then its job goes on.
    const bool job_ended = r.group == "job" && r.text("end") != kEndFailed;
    counted_restarts_ = job_ended ? 0 : n;
  }
  void add_start(const Record& r) {
    const std::string name = r.text("device_name");
    run_.device = name.empty() ? r.text("device") : name;
    run_.layout = r.text("layout");
    run_.processes = count(r, "processes");
    run_.parameters = count(r, "parameters");
  }
  static std::int64_t count(const Record& r, const char* name) {
    return static_cast<std::int64_t>(std::clamp(r.number(name).value_or(0), 0.0, 1e18));
  }
  const char* status() {
    if (!job_end_) {
      add_note(run_, "ended without a recorded reason: killed or crashed");
      return kRunFailed;
    }
    const std::string how = job_end_->text("end");
    if (how == kEndFailed) {
      add_note(run_, first_line(job_end_->text("error")));
      return kRunFailed;
    }
    if (how == kEndFinished) return kRunFinished;
    // A run without a number of steps is finished when its time is up.
    const bool done = run_.steps > 0 ? job_end_->step >= run_.steps : how == kEndOutOfTime;
    return done ? kRunFinished : kRunStopped;
  }

  RunSummary& run_;
  std::optional<Record> job_end_;  // nullopt if a record follows it
  std::deque<double> speeds_;
  std::int64_t counted_restarts_ = 0;  // restarts of the current job that are already counted
  bool last_was_start_ = false;
  double last_time_ = 0;
};

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

bool there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() == fs::file_type::directory;
}

// Returns true if the folder has files of a run, even if its settings are gone.
bool holds_a_run(const fs::path& path) {
  const RunDirectory run(path.string());
  return there(run.metrics_file()) || there(run.checkpoints()) || (run.has_config() && there(run.tokenizer_file()));
}

void read_settings(const RunDirectory& directory, const RunReader& reader, RunSummary& run) try {
  const Config config = directory.config();
  run.steps = config.train.steps;
  reader.settings(config);
} catch (const std::exception& e) {
  add_note(run, first_line(e.what()));
}

// Sets the status of a run that has no records.
void set_status_without_records(const RunDirectory& directory, RunSummary& run) {
  if (there(directory.path() + "/" + kModelFile))
    run.status = kRunImported;
  else if (run.note.empty())
    run.status = kRunFailed, add_note(run, "ended before its first record");
}

RunSummary summary_of(const fs::path& path, const fs::path& searched, const RunReader& reader = {}) {
  RunSummary run{.path = path.string(), .name = path.lexically_relative(searched).string(), .status = kRunUnreadable};
  if (run.name.empty() || run.name == ".") run.name = folder_name(run.path);
  const RunDirectory directory(run.path);
  read_settings(directory, reader, run);
  const bool in_use = directory.in_use();
  History history(run);
  RecordCount count;
  try {
    if (there(directory.metrics_file()))
      count = read_records(directory.metrics_file(), [&](const Record& r) {
        history.add(r);
        reader.record(r);
      });
  } catch (const std::exception& e) {
    add_note(run, first_line(e.what()));
    return run;
  }
  if (count.read || in_use)
    history.finish(now(), in_use);
  else
    set_status_without_records(directory, run);
  if (count.damaged) add_note(run, "metrics.jsonl: " + counted(count.damaged, "damaged line"));
  return run;
}

void add_runs(const fs::path& path, const fs::path& searched, int depth, std::vector<RunSummary>& runs) {
  if (holds_a_run(path)) return runs.push_back(summary_of(path, searched));
  if (depth > kMaxFolderDepth) return;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error))
    if (is_folder(entry->path())) add_runs(entry->path(), searched, depth + 1, runs);
  if (error && depth == 0) fail(path.string(), ": cannot be read: ", error.message(), ". Give a folder of runs");
  if (error)
    runs.push_back({.path = path.string(),
                    .name = path.lexically_relative(searched).string(),
                    .status = kRunUnreadable,
                    .note = error.message()});
}

}  // namespace

RunSummary summarize_run(const std::string& path, const RunReader& reader) {
  const fs::path normal = fs::path(path).lexically_normal();
  const fs::path run_path = normal.has_filename() ? normal : normal.parent_path();
  return summary_of(run_path, run_path, reader);
}

std::vector<RunSummary> runs_below(const std::string& folder) {
  std::vector<RunSummary> runs;
  const fs::path searched = fs::path(folder).lexically_normal();
  add_runs(searched, searched, 0, runs);
  std::ranges::sort(runs, {}, &RunSummary::name);
  return runs;
}

}  // namespace ring
