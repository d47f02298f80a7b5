#pragma once
// State of a model, other than its parameters, that training changes and checkpoints save. It is the same in every
// process.

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

// Access to a run's training step.
struct StepAccess {
  const ExecContext& ctx;
  Mesh& mesh;
  std::int64_t cp_of_heads;       // number of cp ranks that split the KV heads; 1 if they split only queries
  std::function<void()> forward;  // collective; runs the model on the first loaded micro-batch, without tape or dropout
};

// One kind of such state. A model has every kind, whatever its settings; a kind that the settings do not use does
// nothing and adds nothing to checkpoints.
class TrainingState {
 public:
  TrainingState() = default;
  virtual ~TrainingState() = default;
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  // --- While a run trains.
  // Call once, before the first step. The step and everything it refers to must outlive the state.
  virtual void attach(const StepAccess& step) = 0;
  // Called on all ranks before each step (the first is 1), after its batch was loaded; called again if a step is
  // repeated. Returns true if the next forward will differ, which invalidates captured graphs.
  virtual bool before_step(std::int64_t step) = 0;
  // Called after the attention layers got the patterns of their settings, which may be different ones now.
  virtual void on_patterns_set() {}

  // --- In checkpoints.
  // Returns the prefix of this state's names in checkpoints, e.g. "importance.". No other names begin with it.
  virtual const char* prefix() const = 0;
  // Adds the state's tensors, which are whole on every rank, and its values; also works before attach().
  virtual void add_to(State&) = 0;
  // Called before the state's tensors are copied or written on stream `copies`. Guarantees that the tensors then hold
  // all changes by the steps so far, and that later changes wait for the work that is queued on that stream.
  virtual void prepare_for_copy(const Stream& copies) = 0;
  // Called if a loaded checkpoint has other names than this state. Resets the parts whose names are missing from the
  // checkpoint to the state of a new run.
  virtual void begin(const std::vector<std::string>& missing) = 0;
  // Called after a checkpoint was loaded, and after begin(). Returns true if the next forward will differ.
  virtual bool on_state_loaded() = 0;
  // Return the log message for a checkpoint that lacks names, or has names that this run does not have.
  virtual std::string missing_text() const = 0;
  virtual std::string unexpected_text() const = 0;

  // --- Between runs.
  // Loads the usable part of a checkpoint that has this state's names but was saved with different settings. Called for
  // a new run that starts from the checkpoint's weights, or if there is no run. Returns the log message about the
  // unusable rest; empty if there is none.
  virtual std::string load(const std::string& /*checkpoint*/, const Manifest&, const ModelConfig& /*saved*/) {
    return "";
  }
  // Throws Error naming the settings key if the run at path `run`, which had the settings `before`, cannot resume with
  // the model's settings.
  virtual void check_resume(const ModelConfig& /*before*/, const std::string& /*run*/) const {}
};

}  // namespace ring
