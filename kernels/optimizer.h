#pragma once
#include <cstdint>

#include "core/philox.h"
#include "core/step_state.h"
#include "kernels/kernel.h"

namespace ring {

// sum += sum of x^2. x contiguous, f32 or bf16; sum [1] f32. Accumulates in f64, in an order fixed per thread count.
// GPUs first add small groups of elements in f32, then the groups in f64.
struct SquaredNorm {
  Tensor x, sum;
};
inline Cost cost(const SquaredNorm& a) { return cost_of(a.x, {a.x}); }
inline constinit Kernel<SquaredNorm> squared_norm_kernel{"squared_norm"};

// Returns a view, f32 [1], of the field squared_norm of a StepState in device memory (u8 tensor of sizeof(StepState)
// bytes). Throws Error if `state` does not start at its storage's first byte.
inline Tensor squared_norm_of(const Tensor& state) {
  const Tensor floats = Tensor::wrap(state.storage(), {sizeof(StepState) / sizeof(float)}, DType::f32);
  RING_CHECK(floats.raw() == state.raw(), "a StepState must be at the start of its tensor");
  return floats.narrow(0, offsetof(StepState, squared_norm) / sizeof(float), 1);
}

// Decides whether the step is accepted, and how much gradients are clipped. Writes:
//   state.loss      the loss ([1] f32), or 0 if `loss` is undefined.
//   state.accepted  1 if norm and loss are finite and within the state's limits, no earlier step halted, and *peer_lost
//                   is 0; else 0.
//   state.halted    1 if the step is not accepted.
//   state.peer_lost 1 if *peer_lost is not 0.
//   state.clip      min(1, max_norm / norm) (Pascanu et al. 2013); 1 if max_norm <= 0.
struct CheckAndClip {
  Tensor state;
  float max_norm = 0;
  Tensor loss;
  // In page-locked host memory, and read when the kernel runs (comm/mesh/mesh.h); may be null.
  const std::uint32_t* peer_lost = nullptr;
};
inline Cost cost(const CheckAndClip& a) { return cost_of(a.state, {a.state}); }
inline constinit Kernel<CheckAndClip> check_and_clip_kernel{"check_and_clip"};

// AdamW (Loshchilov and Hutter 2019, alg. 2), bias-corrected with step = state.step + 1, with lr = state.lr * lr_scale,
// weight_decay times state.decay_scale, and gradients times state.clip. Does nothing if state.accepted is 0.
//   param, grad, m, v  contiguous, of one length, each f32 or bf16; arithmetic is f32. bf16 results are rounded
//                      stochastically, with random bits that are a function of (seed, state.step, site, element): the
//                      expected value is exact, so that small updates are not lost.
//   m, v               may also be u8: codes in e4m3 and e4m4 (kernels/fp8_moments.h), rounded in the same way.
//   m_scales, v_scales u8, one for each block of 16 codes, from element 0 on; undefined if m and v are not u8.
//   weights            bf16, receives a copy of the new param, rounded to nearest; param is then the f32 master. May be
//                      undefined.
struct AdamW {
  Tensor param, grad, m, v, state;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0, lr_scale = 1;
  Tensor weights;
  Tensor m_scales, v_scales;
  RandomSite site;                 // site.step is ignored: state.step replaces it
  std::int64_t first_element = 0;  // index of element 0 among all parameters, for random bits; a multiple of 8
};
inline Cost cost(const AdamW& a) {
  return cost_of(a.param, {a.param, a.param, a.grad, a.m, a.m, a.v, a.v, a.m_scales, a.m_scales, a.v_scales, a.v_scales,
                           a.weights});
}
inline constinit Kernel<AdamW> adamw_kernel{"adamw"};

}  // namespace ring
