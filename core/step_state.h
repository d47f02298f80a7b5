#pragma once
// Everything that changes from step to step. Kernels read it from one struct in device memory, never from launch
// arguments, so that a captured graph can be replayed and a bad step skipped without asking the host.

#include <cstdint>

namespace ring {

struct StepState {
  std::uint32_t step = 0;    // optimizer steps done before this one; the random counter
  float lr = 0;              // learning rate of this step
  float valid_tokens = 0;    // tokens counted in the loss, over all micro-batches and ranks
  float squared_norm = 0;    // of all gradients, before clipping
  float clip = 1;            // factor applied to gradients by the optimizer
  std::uint32_t finite = 1;  // 0: the optimizer leaves weights and moments untouched
};

}  // namespace ring
