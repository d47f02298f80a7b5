#pragma once
// All values that change from step to step. Kernels read them from one struct in device memory, never from launch
// arguments, so that a captured graph can be replayed, and a bad step skipped without a host round trip.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/host_device.h"

namespace ring {

struct StepState {
  // Written by the host before a step's first kernel, in one copy of kStepInputBytes:
  std::uint32_t step = 0;  // number of optimizer steps before this one; also the RNG counter
  float lr = 0;            // learning rate of this step
  float decay_scale = 1;   // factor on every weight decay
  float loss_scale = 1;    // 1 / valid tokens of all micro-batches and ranks; scales the loss's gradient
  // A step is rejected if loss * loss_scale is not finite, or is above a loss_limit > 0.
  float loss_limit = 0;
  float norm_limit = 0;    // like loss_limit, for the gradient norm
  float squared_norm = 0;  // squared norm of all gradients before clipping; starts at 0
  // Written by the check_and_clip kernel:
  float loss = 0;               // sum over valid tokens of all micro-batches and ranks
  float clip = 1;               // factor applied to gradients by the optimizer
  std::uint32_t accepted = 1;   // 0 if the optimizer leaves weights and moments unchanged
  std::uint32_t halted = 0;     // set by the first rejected step; then nothing is updated until the host clears it
  std::uint32_t peer_lost = 0;  // 1 once a step was rejected because this rank has lost a peer
};
inline constexpr std::size_t kStepInputBytes = offsetof(StepState, loss);

// Returns the factor for the gradient of the loss. Returns NaN once this rank has lost a peer: its weights may then be
// out of date, so every rank must reject a step to which this rank contributes.
RING_HOST_DEVICE inline float gradient_scale(const StepState& s) { return s.peer_lost ? NAN : s.loss_scale; }

}  // namespace ring
