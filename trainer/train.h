#pragma once
// The training loop of a run: start or resume, log, evaluate, save, stop.

#include <string>

#include "comm/mesh.h"
#include "trainer/config.h"

namespace ring {

class StopSignal;

struct TrainOptions {
  bool fresh = false;          // forget what the run's directory holds and start over
  int profile = 0;             // steps to watch kernel by kernel, after a few others; 0: none
  bool nvtx = false;           // ranges for a profiler outside of the process
  bool allow_changes = false;  // resume although settings differ from those that the run was started with
};

enum class TrainEnd { finished, interrupted, out_of_time };

// Error: settings differ from the run's (keys named), data or device problems, a loss that is not finite (after naming
// the step, the samples and the first tensor that is not finite).
TrainEnd train(Config, const TrainOptions&, Mesh&, StopSignal&);

}  // namespace ring
