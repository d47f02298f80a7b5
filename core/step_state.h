#pragma once
// Everything that changes from step to step. Kernels read it from one struct in device memory, never from launch
// arguments, so that a captured graph can be replayed and a bad step skipped without asking the host.

#include <cstddef>
#include <cstdint>

namespace ring {

struct StepState {
  // Written by the host before a step's first kernel, in one copy of kStepInputBytes:
  std::uint32_t step = 0;  // optimizer steps done before this one; the random counter
  float lr = 0;            // learning rate of this step
  float decay_scale = 1;   // factor on every weight decay
  float loss_scale = 1;    // 1 / valid tokens of all micro-batches and ranks: factor of the loss's gradient
  float loss_limit = 0;    // a step whose loss, times loss_scale, is above it is not accepted; 0: any finite loss is
  float norm_limit = 0;    // the same of the gradient's norm
  float squared_norm = 0;  // of all gradients, before clipping; starts at 0
  // Written by the judge_step kernel:
  float loss = 0;              // sum over valid tokens of all micro-batches and ranks
  float clip = 1;              // factor applied to gradients by the optimizer
  std::uint32_t accepted = 1;  // 0: the optimizer leaves weights and moments untouched
  std::uint32_t halted = 0;    // set by the first step that was not accepted; until the host clears it no step updates
};
inline constexpr std::size_t kStepInputBytes = offsetof(StepState, loss);

}  // namespace ring
