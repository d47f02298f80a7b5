#pragma once
// A run as it trains, and its state: what it begins with, and how it is saved.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/failures.h"
#include "checkpoint/save_clock.h"
#include "checkpoint/saver.h"
#include "core/clock.h"
#include "engine/devices.h"
#include "job/worker_page.h"
#include "trainer/run_log.h"

namespace ring {

// The values that the parts of the training loop share.
struct Running {
  RunStart start;  // its memory record is the run's current one
  Mesh& mesh;
  const Config& config = start.steps;
  ExecContext ctx = make_exec_context(config, mesh.device().index);
  Trainer trainer{config, ctx, mesh, *start.loader, start.max_memory()};
  std::optional<GpuWatch> gpu{};  // of this rank
  std::unique_ptr<RunLog> log{};  // null except on rank 0 once the run has begun
  JobTime& time = own_page().time;

  bool leads() const { return mesh.rank() == 0; }
  // Throws Error on rank 0 if the run's directory is no longer this process's. Call before a file in it is opened.
  void check_directory() const {
    if (leads()) start.token->check();
  }
};

class RunState {
 public:
  explicit RunState(Running&);

  State& state() { return state_; }
  // Fills the state from what the run begins with.
  void load();
  // Call on rank 0 after load(), once nothing can be refused any more.
  void begin(bool fresh);
  // Returns when the state that was loaded was saved, as now_ms(); 0 if that is not known.
  std::int64_t loaded_from_ms() const;

  void step_done(double seconds) { clock_.step(seconds, saver_.working()); }
  bool saving() const { return saver_.working(); }
  bool due_by_clock() const { return clock_.due(seconds_now(), run_.trainer.seconds()); }
  void end_save() { saver_.end(run_.trainer.steps_done()); }
  // Return true if a checkpoint, or a snapshot for the launcher, is due after the step that was launched last.
  bool saves_now(bool due) const;
  bool keeps_now() const;
  void save();
  void keep();
  void save_last();  // before the process ends well

  bool has_checkpoint() const { return saver_.saved_step() >= 0 || !run_.start.from.resumed.checkpoint.empty(); }
  void rolled_back();
  void save_choices();  // measured on the device since the last call

 private:
  SaverParts saver_parts();
  void load_checkpoint();
  void load_initial_weights();
  void prepare_save();
  void report(const SaveOutcome&);
  std::string metadata() const;

  Running& run_;
  State state_;
  std::string data_;                       // the fingerprint
  std::vector<std::int64_t> passed_over_;  // steps of damaged checkpoints
  SaveClock clock_{run_.config.checkpoint, seconds_now()};
  std::optional<Failures> failures_;  // of rank 0
  std::int64_t asked_ms_ = 0;         // when the latest save was asked for
  Saver saver_;                       // last: its end waits for the save under way
};

}  // namespace ring
