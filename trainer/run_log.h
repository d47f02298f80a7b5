#pragma once
// What a run says of itself: lines on the console, records in metrics.jsonl. Rank 0 speaks for all: others have none.

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
  // Describes what begins, or goes on from the checkpoint that `trainer` has loaded. Error: the directory cannot be
  // written.
  // gpu: of rank 0; null if it has none.
  RunLog(const RunStart&, Trainer& trainer, int processes, const JobTime& job, GpuWatch* gpu);

  void restarted();

  void step(const StepReport&);
  void bad_step(const BadStep&);
  void computed_again(const StepReport& bad, const StepReport& good);  // that counts: the first result was wrong
  void stopped_by(const StepReport&);  // that was bad: each step since the last record is one now
  void rolled_back();                  // to the step that is done: what came after it is forgotten
  void memory(const MemoryRecord&);    // ran out, and what was recorded then
  // average: of the weights' average, where there is one.
  void validated(const Evaluation&, const std::optional<Evaluation>& average, double bytes_per_token);
  void judged(const std::vector<TaskResult>&);
  // auto_seconds: between two saves, where checkpoint.auto says so.
  void saved(const SaveOutcome&, std::int64_t failures_in_a_row, std::optional<double> auto_seconds);
  void slow(const SlowRank&);
  void slow(const SlowGpu&);
  void kept(std::int64_t step, const KeptOutcome&);  // by the launcher
  void line(const std::string& text) { progress_.line(text); }
  void end(TrainEnd, const TimeSpent&);  // of this process
  void failed(const std::string& why);   // an error ends it

 private:
  void describe(const RunStart&, int processes);
  void started(int processes);
  void record_job(const std::string& how, const std::string& error);
  ProgressState progress_state() const;
  void tell_plan();
  void log_scheduled_changes(const StepReport&);
  static void tell_offload(const HostOffload&);
  static void tell_page_locks(const PageLockFacts&);
  void record(const StepReport&);
  void add_sensors(Metrics::Values&);
  void record_parts(const char* group, const std::vector<double>& values);
  void record_watched(const StepReport&);
  std::int64_t sent_keys();
  void count_flops(std::int64_t context, std::int64_t trained);

  const Config& config_;
  Trainer& trainer_;
  const JobTime& job_;
  GpuWatch* gpu_;
  std::string directory_;
  std::optional<Metrics> metrics_;
  Progress progress_;
  const std::vector<std::int64_t> attention_changes_;
  std::optional<std::pair<std::int64_t, std::size_t>> counted_;  // the context and the stage for which these hold:
  double flops_per_token_ = 0;
  double density_ = 0;  // pairs that attention computes, relative to dense layers
  StepReport last_;
  std::optional<double> val_loss_;
  bool plan_told_ = false, keeps_told_ = false;
  const std::vector<std::string> names_;  // of the corpora
  const bool masked_;                     // of their validation splits only some tokens count
  std::vector<SourceLoss> interval_sources_;
  double interval_seconds_ = 0;  // since the last record
  std::int64_t interval_steps_ = 0;
  std::int64_t interval_tokens_ = 0;
  std::deque<StepReport> unrecorded_;  // the same, at most kMostUnrecorded of them
};

}  // namespace ring
