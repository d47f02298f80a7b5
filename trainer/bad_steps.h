#pragma once
// Handles a step that was not accepted (train.on_bad_step). Collective: all ranks, or all ranks of an island that
// trains alone, see the same reports.

#include "checkpoint/state.h"
#include "comm/mesh/mesh.h"
#include "engine/run_directory.h"
#include "trainer/trainer.h"

namespace ring {

class BadSteps {
 public:
  BadSteps(const Config& c, const RunDirectory& dir, Trainer& trainer, State& state, Mesh& mesh)
      : config_(c), dir_(dir), trainer_(trainer), state_(state), mesh_(mesh) {}

  // Computes the step again, from the same weights and samples. If the result is accepted this time, it replaces the
  // first one, in which the device made an error. If it is bad again with identical bits, the weights and samples are
  // the cause. Without run.deterministic returns the report unchanged, because a difference would prove nothing.
  StepReport recompute_step(const StepReport&);

  // Skips the samples of the step. If the settings say rollback and has_checkpoint is true, instead returns to the
  // newest checkpoint and also skips all samples that were trained on since. Returns true if the state is now that of a
  // checkpoint. Throws Error if train.on_bad_step is stop, or if there were too many bad steps.
  bool skip_or_roll_back(const StepReport&, bool has_checkpoint);

  // Used instead of skip_or_roll_back() if islands train alone: counts the step as done, without an update of this
  // island's weights, so that all islands stay at the same step and sample. Sets the report's step. Throws Error as
  // skip_or_roll_back() does.
  void pass_over(StepReport&, bool has_checkpoint);

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
