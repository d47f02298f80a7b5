#pragma once
// Binds the tensors of a training step to their names in checkpoints, and decides which of them a checkpoint may lack.

#include <string>

#include "checkpoint/state.h"
#include "engine/train_step.h"
#include "trainer/island_binding.h"

namespace ring {

class StateBinding {
 public:
  // All references must outlive this object. steps: steps that the run has done. outer: null if there is no outer
  // optimizer.
  StateBinding(const Config&, TrainStep&, const std::int64_t& steps, OuterOptimizer* outer, Mesh&);

  // Adds weights, optimizer states, averaged weights, and the model's other training states.
  void add_to(State&) const;
  // Loads only the weights of a checkpoint, which may have a different layout. Throws Error, which lists all
  // mismatches.
  void load_weights(const std::string& checkpoint) const;

 private:
  void add_weights(State&) const;
  void add_optimizer_states(State&) const;
  void log_weight_mismatch(const KeyMismatch&, const std::string& metadata, std::int64_t steps) const;
  void log_state_mismatch(const KeyMismatch&) const;
  void start_average(const KeyMismatch&) const;
  void add_residuals(State&) const;
  void log_residuals(const KeyMismatch&) const;
  void add_training_state(State&, TrainingState&) const;

  const Config& config_;
  TrainStep& step_;
  const std::int64_t& steps_;
  const bool has_outer_;
  const IslandBinding islands_;
  const bool leads_;
};

}  // namespace ring
