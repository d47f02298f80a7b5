#pragma once
#include "core/philox.h"
#include "core/step_state.h"
#include "kernels/kernel.h"

namespace ring {

// sum += sum of x^2, in a fixed order per thread count, accumulated in f64 (GPUs: f64 over f32 sums of few). x
// contiguous, f32 or bf16; sum [1] f32.
struct SquaredNorm {
  Tensor x, sum;
};
inline Cost cost(const SquaredNorm& a) { return cost_of(a.x, {a.x}); }
inline constinit Kernel<SquaredNorm> squared_norm_kernel{"squared_norm"};

// The field squared_norm of a StepState in device memory (u8 tensor of sizeof(StepState) bytes), as [1] f32.
inline Tensor squared_norm_of(const Tensor& state) {
  const Tensor floats = Tensor::wrap(state.storage(), {sizeof(StepState) / sizeof(float)}, DType::f32);
  RING_CHECK(floats.raw() == state.raw(), "a StepState within a larger tensor");
  return floats.narrow(0, offsetof(StepState, squared_norm) / sizeof(float), 1);
}

// Clip by global norm (Pascanu et al. 2013): state.clip = min(1, max_norm / norm); max_norm <= 0: no clipping.
// state.loss = loss [1] f32 (undefined: 0). state.accepted = norm and loss are finite and within the state's limits,
// and no earlier step halted; state.halted is set where it is 0.
struct JudgeStep {
  Tensor state;
  float max_norm = 0;
  Tensor loss;
};
inline Cost cost(const JudgeStep& a) { return cost_of(a.state, {a.state}); }
inline constinit Kernel<JudgeStep> judge_step_kernel{"judge_step"};

// AdamW (Loshchilov and Hutter 2019, alg. 2), bias-corrected with step = state.step + 1, lr = state.lr * lr_scale,
// weight_decay times state.decay_scale, gradients times state.clip; does nothing when state.accepted is 0. param, grad,
// m, v: contiguous, one length, each f32 or bf16; arithmetic is f32. What is written in bf16 to param, m or v is
// rounded stochastically, with bits addressed by (seed, state.step, site, element): the expected value is exact, so
// that small updates are not lost. weights, where defined: bf16, gets a copy of the new param, rounded to nearest
// (param is then the f32 master).
struct AdamW {
  Tensor param, grad, m, v, state;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0, lr_scale = 1;
  Tensor weights;
  RandomSite site;                 // site.step is not used
  std::int64_t first_element = 0;  // global number of element 0, for the random bits; a multiple of 8
};
inline Cost cost(const AdamW& a) { return cost_of(a.param, {a.param, a.param, a.grad, a.m, a.m, a.v, a.v, a.weights}); }
inline constinit Kernel<AdamW> adamw_kernel{"adamw"};

}  // namespace ring
