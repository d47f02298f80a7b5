#pragma once
// A run in training, and its state: loads the state at the start, and saves it.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/failures.h"
#include "checkpoint/save_clock.h"
#include "checkpoint/saver.h"
#include "core/clock.h"
#include "engine/devices.h"
#include "job/worker_status.h"
#include "trainer/run_log.h"

namespace ring {

// Values that the parts of the training loop share.
struct RunContext {
  RunStart start;  // start.memory is the run's current memory record; start.step_config are the settings of its steps
  Mesh& mesh;
  const Config& config = start.step_config;
  ExecContext ctx = make_exec_context(config, mesh.device().index);
  Trainer trainer{config, ctx, mesh, *start.loader, start.max_memory()};
  std::optional<GpuWatch> gpu{};  // watch of this rank's GPU, if it has one
  std::unique_ptr<RunLog> log{};  // set on rank 0 once the run has begun; else null
  JobTime& time = own_status().time;

  bool leads() const { return mesh.rank() == 0; }
  // Throws Error on rank 0 if another process has taken over the run's directory. Call before opening a file in the
  // directory.
  void check_directory() const {
    if (leads()) start.token->check();
  }
};

class RunState {
 public:
  explicit RunState(RunContext&);

  State& state() { return state_; }
  // Loads the state from the source chosen at the start: surviving processes, snapshot, checkpoint, or initial weights.
  // kept: required if the state comes from surviving processes; otherwise may be null.
  void load_initial_state(KeptState* kept = nullptr);
  // Call on rank 0 after load_initial_state(), once no check can refuse the run any more. fresh: if true (--fresh),
  // earlier failures are forgotten.
  void begin_run(bool fresh);
  // Returns the time (now_ms()) at which the loaded snapshot or checkpoint was saved; 0 if unknown.
  std::int64_t loaded_state_time_ms() const;

  void on_step_done(double seconds) { clock_.on_step(seconds, saver_.is_writing()); }
  bool saving() const { return saver_.is_writing(); }
  bool due_by_clock() const { return clock_.due(seconds_now(), run_.trainer.seconds()); }
  void end_save() { saver_.end_save(run_.trainer.steps_done()); }
  // Returns true if a checkpoint is due after the most recently launched step. due_or_asked: true if the clock or a
  // signal asks for one; the same on all ranks.
  bool should_save(bool due_or_asked) const;
  // Returns true if a snapshot, which the launcher's agent on this node keeps in memory, is due after that step: at
  // the interval, and after islands have exchanged weights, so that a lost island can repeat its steps since then.
  bool should_save_to_agent() const;
  void save();
  void save_to_agent();
  void save_last();  // call before the process ends without an error

  bool has_checkpoint() const { return saver_.saved_step() >= 0 || !run_.start.from.resumed.checkpoint.empty(); }
  void on_rollback();   // call after an earlier state was loaded again
  void save_choices();  // saves kernel choices measured since the previous call

 private:
  SaverParts saver_parts();
  void load_from_survivors(KeptState&);
  void load_checkpoint();
  void load_initial_weights();
  void prepare_save();
  void report_save(const SaveOutcome&);
  std::string metadata() const;

  RunContext& run_;
  State state_;
  std::string data_;                         // data_fingerprint() of the inputs
  std::vector<std::int64_t> damaged_steps_;  // steps of damaged checkpoints
  SaveClock clock_{run_.config.checkpoint, seconds_now()};
  std::optional<Failures> failures_;  // set only on rank 0
  std::int64_t asked_ms_ = 0;         // now_ms() when the latest save was requested
  Saver saver_;                       // declared last, since its destructor waits for a save in progress
};

}  // namespace ring
