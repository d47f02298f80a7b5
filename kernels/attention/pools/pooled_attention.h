#pragma once
// Attention over the pairs of a pattern and over its pools (Pattern::pools). There is one kernel call per pool size and
// one for the pairs; their results are merged by log-sum-exp. The result is exactly one softmax over tokens and pools,
// forward and backward: the compressed branch of NSA (Yuan et al. 2025, section 3.3.1).
//   * A pool is the mean of its tokens, or their sum by learned weights (weighted_pool.h).
//   * Optional gates, one per query and head, are added to the scores of all pools that the query sees. They are NSA's
//     gates: they weigh branches by exp(g) within the one softmax.
//   * Without pools there is only the call for the pairs.

#include <vector>

#include "kernels/attention/attention.h"

namespace ring {

// Learned weights of the pools of one size p: positions [Hk,p], query [Hk,D], of the keys' type.
struct PoolWeights {
  Tensor positions, query;
};
// Return the size of the flat parameter of all pool sizes (for each: positions, query), and its views. dim: head dim.
std::int64_t pool_weights_numel(const Pattern&, std::int64_t kv_heads, std::int64_t dim);
std::vector<PoolWeights> pool_weights(const Tensor& flat, const Pattern&, std::int64_t kv_heads, std::int64_t dim);
std::vector<PoolWeights> of_heads(const std::vector<PoolWeights>&, KvHeads);

struct PoolOperands {
  std::vector<PoolWeights> weights{};  // one per size; empty if pools are means
  Tensor gates{};                      // f32 [Hq,N], laid out as lse; 0 if undefined
  Tensor scored{};                     // [N,Hk,D], scored by the weights' query (x of WeightedPool); v if undefined
  // Output, f32 [Hq,N]: for each query and head, the mean gate of its keys, weighted by their probabilities. Not
  // computed if undefined.
  Tensor mean_gates{};
};

// pairs: the call of attention over tokens. Its pattern also has the sizes of the pools. If there are pools, documents
// must be whole, queries and keys must have the same spans, and there may be no carry and no dropout. lse covers tokens
// and pools.
struct PooledAttention {
  Attention pairs;
  PoolOperands pools{};
};
// Overwrites out, lse and, if it is defined and the pattern has pools, mean_gates.
void pooled_attention(PooledAttention, const ExecContext&);

struct PoolBackwardOperands {
  std::vector<PoolWeights> weights{}, dweights{};  // dweights: f32, overwritten; unchanged for sizes without any pool
  Tensor gates{}, dgates{};                        // dgates: f32 [Hq,N], overwritten
};

// Has the requirements of PooledAttention. Gradients of a pool are added in f32 to the gradients of the pool's tokens.
struct PooledAttentionBackward {
  AttentionBackward pairs;
  PoolBackwardOperands pools{};
};
// Overwrites dq, dk, dv and, if the pattern has pools, dweights and dgates.
void pooled_attention_backward(PooledAttentionBackward, const ExecContext&);

}  // namespace ring
