#pragma once
// What becomes of a step that was not accepted (train.on_bad_step). Collective: every rank sees the same reports.

#include "checkpoint/state.h"
#include "comm/mesh/mesh.h"
#include "engine/run_directory.h"
#include "trainer/trainer.h"

namespace ring {

class BadSteps {
 public:
  BadSteps(const Config& c, const RunDirectory& dir, Trainer& trainer, State& state, Mesh& mesh)
      : config_(c), dir_(dir), trainer_(trainer), state_(state), mesh_(mesh) {}

  // The step again, from the same weights and samples. Accepted, it counts: then the device computed wrongly the first
  // time. What is bad twice with the same bits is bad because of its weights and samples. Without run.deterministic the
  // report itself: bits that differ would say nothing.
  StepReport compute_again(const StepReport&);

  // Leaves out its samples, or goes back to the newest checkpoint, where there is one, and leaves out all that were
  // trained on since, too. Returns whether the state is that of a checkpoint now. Error: train.on_bad_step is stop, or
  // there were too many.
  bool leave_out(const StepReport&, bool has_checkpoint);

 private:
  [[noreturn]] void stop(const StepReport&, bool has_checkpoint);
  void roll_back(const std::string& checkpoint);

  const Config& config_;
  const RunDirectory& dir_;
  Trainer& trainer_;
  State& state_;
  Mesh& mesh_;
};

}  // namespace ring
