#pragma once
#include <cstdint>

#include "core/host_device.h"
#include "kernels/kernel.h"

namespace ring {

// Exponential moving average (Polyak and Juditsky 1992): average += (1 - d) (values - average), where d is `decay`, or
// less in the first steps (see decay_at) of a StepState's count. Does nothing when state.accepted is 0. values and
// average: f32, contiguous, one length.
struct MovingAverage {
  Tensor values, average, state;
  double decay = 0;
};
inline Cost cost(const MovingAverage& a) { return cost_of(a.average, {a.values, a.average, a.average}); }
inline constinit Kernel<MovingAverage> moving_average_kernel{"moving_average"};

// After so many steps the average spans about a ninth of them and no more, so that it soon forgets where training
// began: (1 + steps) / (10 + steps), as in TensorFlow's ExponentialMovingAverage.
RING_HOST_DEVICE inline double decay_at(std::uint32_t steps, double decay) {
  const double warming = (1.0 + steps) / (10.0 + steps);
  return warming < decay ? warming : decay;
}

}  // namespace ring
