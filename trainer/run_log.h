#pragma once
// Logs a run: lines on the console and records in metrics.jsonl. Only rank 0 has a RunLog; it logs for all ranks.

#include <deque>
#include <optional>
#include <string>

#include "checkpoint/saver.h"
#include "comm/pace.h"
#include "core/host_tensor.h"
#include "data/loader.h"
#include "evaluate/evaluate.h"
#include "evaluate/tasks.h"
#include "job/job_time.h"
#include "trainer/gpu_watch.h"
#include "trainer/metrics.h"
#include "trainer/progress.h"
#include "trainer/run_start.h"
#include "trainer/step_guard.h"
#include "trainer/time_spent.h"
#include "trainer/train_end.h"
#include "trainer/trainer.h"

namespace ring {

class RunLog {
 public:
  // Logs the start of the run, or that it resumes from the checkpoint that `trainer` has loaded. gpu: watch of rank 0's
  // GPU; null if it has none. Throws Error if the directory cannot be written.
  RunLog(const RunStart&, Trainer& trainer, int processes, const JobTime& job, GpuWatch* gpu);

  void log_restart(const StartingState&);
  bool has_record(const std::string& group, std::int64_t step) const;  // reads metrics.jsonl
  // Logs the step if it was never recorded, because rank 0 died or lost a peer between finishing and recording it.
  void log_step_if_missing(const StepReport&);

  void log_step(const StepReport&);
  void log_bad_step(const BadStep&);
  // Logs a bad step that was computed again: the first result was wrong, and `good` replaces it.
  void log_recomputed_step(const StepReport& bad, const StepReport& good);
  // Logs a bad step that ends the run, and records all steps since the last record.
  void log_fatal_step(const StepReport&);
  void log_rollback();                            // call after a rollback: removes the records of the discarded steps
  void log_memory_shortage(const MemoryRecord&);  // call with the record made after memory ran out
  // average: result with the averaged weights (train.ema), if they exist.
  void log_validation(const Evaluation&, const std::optional<Evaluation>& average, double bytes_per_token);
  void log_task_results(const std::vector<TaskResult>&);
  // auto_seconds: interval between saves, if checkpoint.auto chooses it.
  void log_save(const SaveOutcome&, std::int64_t failures_in_a_row, std::optional<double> auto_seconds);
  void log_slow_rank(const SlowRank&);
  void log_slow_gpu(const SlowGpu&);
  void log_agent_save(std::int64_t step, const AgentSaveOutcome&);  // logs a snapshot that the launcher keeps
  void print_line(const std::string& text) { progress_.print_line(text); }
  void log_end(TrainEnd, const TimeSpent&);  // TimeSpent: time of this process
  void log_failure(const std::string& why);  // call when an error ends the run

 private:
  void record_settings(const RunStart&, int processes);
  void log_start(int processes);
  void record_job(const std::string& how, const std::string& error);
  ProgressState progress_state() const;
  void log_plan();
  void log_scheduled_changes(const StepReport&);
  static void log_offload(const HostOffload&);
  static void log_page_locks(const PageLockFacts&);
  void record_step(const StepReport&);
  void log_pairs(const Evaluation&, const std::optional<Evaluation>& average);
  void add_gpu_means(Metrics::Values&);
  void record_parts(const char* group, const std::vector<double>& values);
  void record_diagnostics(const StepReport&);
  void count_flops(std::int64_t context, std::int64_t trained_tokens);

  const Config& config_;
  Trainer& trainer_;
  const JobTime& job_;
  GpuWatch* gpu_;
  std::string directory_;
  std::optional<Metrics> metrics_;
  Progress progress_;
  const std::vector<std::int64_t> attention_changes_;
  // Context (in tokens) and attention stage for which flops_per_token_ and density_ were computed.
  std::optional<std::pair<std::int64_t, std::size_t>> counted_;
  double flops_per_token_ = 0;
  double density_ = 0;  // query-key pairs that attention computes, relative to dense attention
  StepReport last_;
  std::optional<double> val_loss_;
  bool plan_logged_ = false, agent_saves_logged_ = false;
  const std::vector<std::string> names_;  // names of the corpora
  const bool masked_;                     // true if only some tokens of the validation splits have targets
  std::vector<SourceLoss> interval_sources_;
  double interval_seconds_ = 0;  // seconds since the last record
  std::int64_t interval_steps_ = 0;
  std::int64_t interval_tokens_ = 0;
  std::deque<StepReport> unrecorded_;  // steps since the last record, at most kMaxUnrecorded
};

}  // namespace ring
