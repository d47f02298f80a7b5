#pragma once
// State of islands that train alone (parallel.local_steps) in checkpoints:
//   model.*                        outer weights, and the frozen weights
//   outer.momentum.*               momentum of the outer optimizer
//   outer.combined_step            most recent step whose due fragments have been combined
//   islands.I.model.*              weights of island I
//   islands.I.residual.*           remainders that island I has yet to send (parallel.outer_bits below 32)
//   optimizer.*                    optimizer states of island 0
//   islands.I.optimizer.*          optimizer states of the other islands
// A run that resumes with more islands starts the new ones from the outer weights and the optimizer states of island 0.

#include <string>

#include "checkpoint/state.h"
#include "comm/mesh/mesh.h"
#include "engine/train_step.h"
#include "optim/outer_optimizer.h"

namespace ring {

class IslandBinding {
 public:
  static constexpr const char* kPrefix = "islands.";  // prefix of all names that belong to one island

  // steps: the trainer's step count. outer: null if there is no outer optimizer. All references must outlive this
  // object.
  IslandBinding(const Config&, TrainStep&, const std::int64_t& steps, OuterOptimizer* outer, Mesh&);

  // Adds the outer optimizer's weights and states, and the weights of the islands.
  void add_to(State&) const;
  // Allows a checkpoint with a different number of islands, without an outer optimizer, or without
  // outer.combined_step, which earlier versions did not save.
  void allow_other_islands(State&) const;
  static std::string prefix(int island);  // of the names that belong to this island only, e.g. "islands.1."
  // Returns the prefix of an island's optimizer states.
  static std::string optimizer_prefix(int island);
  // Returns the name of an island's list of bad steps.
  static std::string bad_steps_name(int island);
  int islands() const { return mesh_.degree("island"); }
  int island() const { return mesh_.coord("island"); }
  void on_weights_loaded() const;  // restarts the outer optimizer; call after weights alone were loaded

 private:
  void start_islands(const KeyMismatch&) const;
  void copy_states_of_island_0(bool is_new) const;
  void infer_combined_step(const std::string& metadata) const;

  const Config& config_;
  TrainStep& step_;
  const std::int64_t& steps_;
  OuterOptimizer* const outer_;
  Mesh& mesh_;
};

}  // namespace ring
