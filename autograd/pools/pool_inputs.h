#pragma once
// Inputs of attention that belong to its pools.

#include "autograd/tape.h"
#include "kernels/attention/pools/pooled_attention.h"

namespace ring {

// Learned parameters of pools. Either, both or none may be set.
template <class T>
struct PoolInputs {
  T weights, gates;  // weights: flat, as pool_weights() takes them; gates: [N,Hq]
};

// Throws Error if the pattern has no pools, or if the shape of the gates is not [tokens,heads].
void check(const PoolInputs<Tensor>&, const Pattern&, std::int64_t tokens, std::int64_t heads);

// Return the attention call with the operands of its pools added.
PooledAttention with_pools(const Attention&, const PoolInputs<Tensor>&, const ExecContext&);
// gradients: receives the tensors that the call writes, f32; the gradient of gates is by head, [Hq,N].
PooledAttentionBackward with_pools(const AttentionBackward&, const PoolInputs<Tensor>&, PoolInputs<Tensor>& gradients,
                                   const ExecContext&);
// Passes these gradients on to the slots that want them.
void accumulate(const Backward&, const PoolInputs<SlotPtr>&, const PoolInputs<Tensor>& values,
                const PoolInputs<Tensor>& gradients);

}  // namespace ring
