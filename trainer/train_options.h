#pragma once
// What a run is told beside its settings.

#include <memory>
#include <string>

#include "kernels/kernel.h"
#include "trainer/gpu_watch.h"

namespace ring {

class Trainer;

// Watches the steps of a run, such as a profiler.
class StepWatcher {
 public:
  virtual ~StepWatcher() = default;
  virtual void before_launch(Trainer&) = 0;
  virtual bool after_launch(Trainer&) = 0;  // true: that was the last step to watch
  // After that, or at the end of the run, with no step in flight. The text is shown; empty: nothing to show.
  virtual std::string report(const ExecContext&) = 0;
};

struct TrainOptions {
  bool fresh = false;          // forget what the run's directory holds and start over
  bool fit = false;            // choose train.micro_batch
  bool allow_changes = false;  // resume although settings differ from those that the run was started with
  int restarts = 0;            // of this job by its launcher, so far
  std::shared_ptr<KernelObserver> observer{};  // of all kernels; null: none
  StepWatcher* watcher = nullptr;              // of rank 0; null: none
  std::shared_ptr<const GpuSource> gpu{};      // null for the sensors of the rank's GPU, if it has one
};

}  // namespace ring
