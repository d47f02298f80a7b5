#pragma once
#include "kernels/kernel.h"

namespace ring {

inline constexpr std::int32_t kIgnoreTarget = -100;

// Softmax cross-entropy of rows of logits, with its gradient written over them. logits [n,V], columns >= vocab are
// padding: read as -inf, gradient 0. targets [n] i32, kIgnoreTarget = no loss, other values outside [0, vocab) are an
// Error (from a GPU, which cannot raise one without being waited for: the loss is NaN). logits f32 or bf16; weights [n]
// f32 or undefined (the label mask). With lse = log-sum-exp of a row, loss [n] f32 = weight * (lse - logit[target] +
// z_loss * lse^2), 0 where ignored. With `gradient`, logits become scale * d(loss)/d(logits), times state.loss_scale
// where a StepState is given; without, they stay. z-loss: Chowdhery et al. 2022 (PaLM), section 5. correct [n] f32 or
// undefined: 1 where no logit of the row is larger than the target's, else 0; 0 where ignored.
struct CrossEntropy {
  Tensor logits, targets, weights, loss, correct;
  std::int64_t vocab = 0;
  float scale = 1, z_loss = 0;
  bool gradient = true;
  Tensor state;  // a StepState in device memory, or undefined
};
inline Cost cost(const CrossEntropy& a) {
  return cost_of(a.logits, {a.logits, a.gradient ? a.logits : Tensor{}, a.targets, a.weights, a.loss, a.correct});
}
inline constinit Kernel<CrossEntropy> cross_entropy_kernel{"cross_entropy"};

}  // namespace ring
