#pragma once

#include "comm/pace.h"
#include "trainer/gpu_watch.h"
#include "trainer/run_log.h"

namespace ring {

// Finds and logs ranks and GPUs that slow a run down.
class PaceWatch {
 public:
  // host: communicator of all ranks. gpu: watch of this rank's GPU, null if it has none; must outlive this object.
  PaceWatch(Communicator& host, GpuWatch* gpu);

  // Call on every rank after each step. data_seconds: time that this rank waited for data. log: null except on rank 0.
  void on_step(double data_seconds, RunLog* log);

 private:
  Pace pace_;
};

}  // namespace ring
