#pragma once
// State of a model beside its parameters that training steps change and checkpoints hold. Every process has the same.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/config.h"

namespace ring {

class Mesh;
class State;
class Stream;
struct ExecContext;
struct Manifest;

// The training step of a run, as a state sees it.
struct StepAccess {
  const ExecContext& ctx;
  Mesh& mesh;
  std::int64_t cp_of_heads;  // ranks of cp that share the heads; 1: they share the queries, or cp is 1
  std::function<void()>
      forward;  // on all ranks: runs the model on the first loaded micro-batch, without tape or dropout
};

// A model has each of its states whatever its settings are: one that the settings do not ask for adds nothing to
// checkpoints and does nothing.
class TrainingState {
 public:
  TrainingState() = default;
  virtual ~TrainingState() = default;
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  // --- While a run trains.
  // Call once, ahead of the first step. The step, and what it refers to, outlives the state.
  virtual void attach(const StepAccess& step) = 0;
  // Called on all ranks ahead of each step (the first is 1), which was loaded; again for a step that is computed again.
  // Returns true if the next forward differs from the last one, which makes captured graphs stale.
  virtual bool before_step(std::int64_t step) = 0;

  // --- In checkpoints.
  // Returns what its names there begin with, and no other names do: "importance.".
  virtual const char* prefix() const = 0;
  // Adds its tensors, whole on every rank, and its values; also without a step.
  virtual void add_to(State&) = 0;
  // Called before its tensors are copied, or written, on this stream. They hold all changes by the steps so far, and
  // change again only behind what is queued there.
  virtual void settle_for(const Stream& copies) = 0;
  // Called after a checkpoint without these names was loaded: what has them begins as in a new run.
  virtual void begin(const std::vector<std::string>& missing) = 0;
  // Called after a checkpoint was loaded, and after begin(). Returns true as before_step() does.
  virtual bool restored() = 0;
  // Return what the log says if a checkpoint lacks names, or has names that this run does not have.
  virtual std::string missing_text() const = 0;
  virtual std::string unexpected_text() const = 0;

  // --- Between runs.
  // Takes what it can use of a checkpoint with such names that was saved with other settings: for a new run with these
  // weights, or without a run. Returns what the log says of the rest; empty: nothing.
  virtual std::string load(const std::string& /*checkpoint*/, const Manifest&, const ModelConfig& /*saved*/) {
    return "";
  }
  // Throws Error, which names the key, if a run at this path with settings `before` cannot resume with the model's.
  virtual void check_resume(const ModelConfig& /*before*/, const std::string& /*run*/) const {}
};

}  // namespace ring
