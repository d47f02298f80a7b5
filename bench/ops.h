#pragma once
// Times the kernels of one training step, each repeated with the operands that the step gives it.

#include <functional>
#include <string>
#include <vector>

#include "bench/step.h"

namespace ring {

// All calls of one kernel with operands of the same shapes.
struct OpTiming {
  std::string slot, candidate;
  Cost cost;           // cost of each call
  int calls = 0;       // number of calls per step
  double seconds = 0;  // seconds per call, when queued back to back; 0 if not measured
};

// Lower bound on the time of a step: GEMMs and attention take their measured time, and everything else is memory
// traffic at 85 % of the rate of a copy. Only faster GEMMs or attention can make a step faster than this bound.
struct StepFloor {
  double products = 0, attention = 0, rest = 0;
  double seconds() const { return products + attention + rest; }
};
inline constexpr double kFusedShareOfCopy = 0.85;

struct OpsReport {
  std::vector<OpTiming> ops;  // sorted by total time in a step, longest first
  double step_seconds = 0;    // median of steps without observers
  Ceilings ceilings;
  StepFloor step_floor() const;
};

// Returns the kernels of the next step in the order of their first calls, and times the `wanted` ones by repeating
// them. Repeated kernels leave meaningless values, so this must be the last step.
std::vector<OpTiming> repeat_ops(StepBenchmark&, double seconds_each,
                                 const std::function<bool(const OpTiming&)>& wanted);

// filter: if given, only ops whose slot or shape contains this text are timed; the other ops have no time, and
// step_floor() is meaningless.
OpsReport time_ops(StepBenchmark&, double seconds_each, int steps, const std::string& filter = {});

}  // namespace ring
