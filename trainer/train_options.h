#pragma once
// Options of a run that are not settings.

#include <memory>
#include <string>

#include "kernels/kernel.h"
#include "trainer/gpu_watch.h"

namespace ring {

class KeptState;
class Trainer;

// Watches the steps of a run, e.g. to profile them.
class StepWatcher {
 public:
  virtual ~StepWatcher() = default;
  virtual void before_launch(Trainer&) = 0;
  virtual bool after_launch(Trainer&) = 0;  // returns true after the last step that it watches
  // Called after the last watched step, or at the end of the run, with no step in flight. Returns text to log, or "".
  virtual std::string report(const ExecContext&) = 0;
};

struct TrainOptions {
  bool fresh = false;          // discard the contents of the run's directory and start over
  bool fit = false;            // choose train.micro_batch
  bool allow_changes = false;  // resume even if the settings differ from those that the run was started with
  int restarts = 0;            // number of times that the launcher has restarted this job
  std::shared_ptr<KernelObserver> observer{};  // receives all kernels; may be null
  StepWatcher* watcher = nullptr;              // watcher on rank 0; may be null
  KeptState* kept = nullptr;                   // receives the state if a peer is lost; null to end this process then
  std::shared_ptr<const GpuSource> gpu{};      // if null, the sensors of this rank's GPU are used, if it has one
};

}  // namespace ring
