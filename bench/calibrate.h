#pragma once
// What this machine sustains in a training step, for `ringmaster plan --rates`.

#include "bench/step.h"
#include "parallel/plan/cost_model.h"

namespace ring {

// From some steps of the benchmark, kernel by kernel, and copies and messages of its own. Collective: with several
// processes the link between them is measured, too.
DeviceRates calibrate(StepBenchmark&);

}  // namespace ring
