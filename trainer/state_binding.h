#pragma once
// Binds the tensors of a training step to their names in checkpoints, and says which of them a checkpoint may lack.

#include <string>

#include "checkpoint/state.h"
#include "engine/train_step.h"

namespace ring {

class StateBinding {
 public:
  // All outlive this. steps: that the run has done.
  StateBinding(const Config&, TrainStep&, const std::int64_t& steps, bool leads);

  // Adds weights, states of the optimizer, the average of the weights, and what else training changes of the model.
  void add_to(State&) const;
  // Loads the weights of a checkpoint of any layout, and nothing else of it. Throws Error, which lists what does not
  // match.
  void load_weights(const std::string& checkpoint) const;

 private:
  void add_weights(State&) const;
  void tell_weights(const TensorsApart&, const std::string& metadata, std::int64_t steps) const;
  void tell_states(const TensorsApart&) const;
  void begin_average(const TensorsApart&) const;
  void add_training_state(State&, TrainingState&) const;

  const Config& config_;
  TrainStep& step_;
  const std::int64_t& steps_;
  bool leads_;
};

}  // namespace ring
