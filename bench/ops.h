#pragma once
// The kernels of one training step, each repeated on the very operands that the step gives it.

#include <functional>
#include <string>
#include <vector>

#include "bench/step.h"

namespace ring {

// All calls of one kernel on operands of one shape.
struct OpTiming {
  std::string slot, candidate;
  Cost cost;           // of one call
  int calls = 0;       // in a step
  double seconds = 0;  // of one call, queued back to back; 0: not measured
};

// The least time of a step whose matrix products and attention run as they do, while all other work is memory traffic
// at 85 % of what a copy sustains: no step gets below without faster products or attention.
struct StepFloor {
  double products = 0, attention = 0, rest = 0;
  double seconds() const { return products + attention + rest; }
};
inline constexpr double kFusedShareOfCopy = 0.85;

struct OpsReport {
  std::vector<OpTiming> ops;  // by time in a step, longest first
  double step_seconds = 0;    // of undisturbed steps: median
  Ceilings ceilings;
  StepFloor floor() const;
};

// The kernels of the next step, in the order of their first calls; those that are `wanted` are repeated for their time.
// It is the last step: what is called many times leaves values that mean nothing.
std::vector<OpTiming> repeat_ops(StepBenchmark&, double seconds_each,
                                 const std::function<bool(const OpTiming&)>& wanted);

// filter: repeats only the ops whose slot or shape holds this text; others have no time, and there is no floor then.
OpsReport time_ops(StepBenchmark&, double seconds_each, int steps, const std::string& filter = {});

}  // namespace ring
