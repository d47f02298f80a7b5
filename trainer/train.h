#pragma once
// The training loop of a run: start or resume, log, evaluate, save, stop.

#include <memory>
#include <string>

#include "comm/mesh.h"
#include "kernels/kernel.h"
#include "trainer/config.h"

namespace ring {

class StopSignal;

class Trainer;

// Watches the steps of a run, such as a profiler.
class StepWatcher {
 public:
  virtual ~StepWatcher() = default;
  virtual void before_launch(Trainer&) = 0;
  virtual bool after_launch(Trainer&) = 0;  // true: that was the last step to watch
  // After that, or at the end of the run, with no step in flight. The text is shown.
  virtual std::string report(const ExecContext&) = 0;
};

struct TrainOptions {
  bool fresh = false;          // forget what the run's directory holds and start over
  bool allow_changes = false;  // resume although settings differ from those that the run was started with
  std::shared_ptr<KernelObserver> observer{};  // of all kernels; null: none
  StepWatcher* watcher = nullptr;              // of rank 0; null: none
};

enum class TrainEnd { finished, interrupted, out_of_time };

// Error: settings differ from the run's (keys named), data or device problems, a loss that is not finite (after naming
// the step, the samples and the first tensor that is not finite).
TrainEnd train(Config, const TrainOptions&, Mesh&, StopSignal&);

}  // namespace ring
