#pragma once
#include "kernels/kernel.h"

namespace ring {

// Entropy of the attention probabilities p, in nats. Since log p_j = scale q.k_j - lse, it is
//   lse - scale q . (sum over j of p_j k_j),
// so attention with k as its values gives the inputs `keys` (its output) and `lse`. A key that a pattern counts m times
// counts as m keys.
//   q     [N,Hq,D], f32 or bf16, any strides with unit last dim.
//   keys  [N,Hq,D] f32, contiguous; lse [Hq,N] f32, contiguous.
//   out   [N,2Hq] f32, contiguous: Hq entropies, then Hq flags: 1 if the query sees a key; else 0, with entropy 0.
struct AttentionEntropy {
  Tensor q, keys, lse, out;
  float scale = 1;
};
inline Cost cost(const AttentionEntropy& a) { return cost_of(a.q, {a.q, a.keys, a.lse, a.out}); }
inline constinit Kernel<AttentionEntropy> attention_entropy_kernel{"attention_entropy"};

// Throws Error, naming the tensor, if shapes do not fit.
void check(const AttentionEntropy&);

}  // namespace ring
