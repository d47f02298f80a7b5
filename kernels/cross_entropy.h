#pragma once
#include "kernels/kernel.h"

namespace ring {

inline constexpr std::int32_t kIgnoreTarget = -100;  // target of a token without loss, as in PyTorch

// Softmax cross-entropy of each row of logits. With lse, the log-sum-exp of the row:
//   loss = weight * (lse - logit[target] + z_loss * lse^2)      (z-loss: Chowdhery et al. 2022, PaLM, section 5).
//   logits   [n,V], f32 or bf16. Columns >= vocab are padding: read as -inf, with gradient 0. If `gradient`, the logits
//            are replaced by scale * d(loss)/d(logits), times gradient_scale(state) if state is defined; else
//            unchanged.
//   targets  [n] i32. kIgnoreTarget gives no loss. Throws Error if any other value is outside [0, vocab). GPUs cannot
//            report this without synchronizing; there, the loss is NaN instead.
//   weights  [n] f32, such as a label mask; may be undefined.
//   loss     [n] f32; 0 if the target is ignored.
//   correct  [n] f32, may be undefined: 1 if no logit of the row exceeds the target's; else 0, also if ignored.
struct CrossEntropy {
  Tensor logits, targets, weights, loss, correct;
  std::int64_t vocab = 0;
  float scale = 1, z_loss = 0;
  bool gradient = true;
  Tensor state;  // a StepState in device memory; may be undefined
};
inline Cost cost(const CrossEntropy& a) {
  return cost_of(a.logits, {a.logits, a.gradient ? a.logits : Tensor{}, a.targets, a.weights, a.loss, a.correct});
}
inline constinit Kernel<CrossEntropy> cross_entropy_kernel{"cross_entropy"};

}  // namespace ring
