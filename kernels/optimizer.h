#pragma once
#include "core/step_state.h"
#include "kernels/kernel.h"

namespace ring {

// state.squared_norm += sum of x^2, accumulated in f64 and in a fixed order per thread count. state: a StepState in device
// memory (u8 tensor of sizeof(StepState) bytes).
struct SquaredNorm {
  Tensor x, state;
};
inline constinit Kernel<SquaredNorm> squared_norm_kernel{"squared_norm"};

// Clip by global norm (Pascanu et al. 2013): state.finite = isfinite(squared_norm), state.clip = min(1, max_norm / norm);
// max_norm <= 0: no clipping.
struct ClipFactor {
  Tensor state;
  float max_norm = 0;
};
inline constinit Kernel<ClipFactor> clip_factor_kernel{"clip_factor"};

// AdamW (Loshchilov and Hutter 2019, alg. 2), bias-corrected with step = state.step + 1, lr = state.lr * lr_scale, gradients times
// state.clip; does nothing when state.finite is 0. param, grad, m, v: contiguous f32 of one length.
struct AdamW {
  Tensor param, grad, m, v, state;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0, lr_scale = 1;
};
inline constinit Kernel<AdamW> adamw_kernel{"adamw"};

}  // namespace ring
