#pragma once
#include <cstdint>

#include "core/host_device.h"
#include "kernels/kernel.h"

namespace ring {

// Exponential moving average (Polyak and Juditsky 1992): average += (1 - d) (values - average) with d =
// decay_at(state.step, decay). Does nothing if state.accepted is 0. values and average: f32, contiguous, of one length.
struct MovingAverage {
  Tensor values, average, state;
  double decay = 0;
};
inline Cost cost(const MovingAverage& a) { return cost_of(a.average, {a.values, a.average, a.average}); }
inline constinit Kernel<MovingAverage> moving_average_kernel{"moving_average"};

// Returns the decay after `steps` steps: min(decay, (1 + steps) / (10 + steps)), as in TensorFlow's
// ExponentialMovingAverage. Early in training the average thus covers only about the newest ninth of all steps so far,
// so that it soon forgets the initial values.
RING_HOST_DEVICE inline double decay_at(std::uint32_t steps, double decay) {
  const double warming = (1.0 + steps) / (10.0 + steps);
  return warming < decay ? warming : decay;
}

}  // namespace ring
