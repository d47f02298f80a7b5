#pragma once
#include "kernels/kernel.h"

namespace ring {

// Entropy of the weights p of attention, in nats. Since log p_j = scale q.k_j - lse it is lse - scale q.(sum_j p_j
// k_j), so attention with its keys for values says all that is needed: keys, lse. A key that a pattern counts m times
// is m keys. q [N,Hq,D] f32 or bf16, any strides with unit last dim; keys [N,Hq,D] f32; lse [Hq,N] f32. out [N,2Hq]
// f32: the entropies, and behind them 1 for a row that sees a key, 0 for one that sees none, whose entropy is 0.
struct AttentionEntropy {
  Tensor q, keys, lse, out;
  float scale = 1;
};
inline Cost cost(const AttentionEntropy& a) { return cost_of(a.q, {a.q, a.keys, a.lse, a.out}); }
inline constinit Kernel<AttentionEntropy> attention_entropy_kernel{"attention_entropy"};

// Error: shapes. Names the tensor.
void check(const AttentionEntropy&);

}  // namespace ring
