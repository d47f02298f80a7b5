#pragma once
// Attention over the pairs of a pattern and over its pools (Pattern::pools): a call for each size and one for the
// pairs, merged by their log-sum-exps. Together they are one softmax over tokens and pools, the compressed branch of
// NSA (Yuan et al. 2025, section 3.3.1), and exact for it, forward and backward. A pool is the mean of its tokens, or
// their sum by learned weights (weighted_pool.h). Gates, where there are any, are added to the scores of all pools of a
// query and head: NSA's gates, which weigh branches by exp(g) within the one softmax. Without pools it is the call of
// the pairs alone.

#include <utility>

#include "core/visit_all.h"
#include "kernels/attention/attention.h"

namespace ring {

// What pools of one size have learned: positions [Hk,p], query [Hk,D] of the keys' type.
struct PoolWeights {
  Tensor positions, query;
};
// In one vector, size after size: positions, then query. dim: of a head.
std::int64_t pool_weights_numel(const Pattern&, std::int64_t kv_heads, std::int64_t dim);
std::vector<PoolWeights> pool_weights(const Tensor& flat, const Pattern&, std::int64_t kv_heads, std::int64_t dim);
std::vector<PoolWeights> of_heads(const std::vector<PoolWeights>&, KvHeads);

struct PoolOperands {
  std::vector<PoolWeights> weights;  // by size; none: pools are means
  Tensor scored;                     // [N,Hk,D], what the weights' query is multiplied with; undefined: v
  Tensor gates;                      // f32 [Hq,N] as lse is; undefined: 0
  Tensor mean_gates;                 // of gates, f32 [Hq,N], takes the mean over the weights of each query's keys
};

// The arguments of attention_kernel with whole documents, the same spans of queries and keys, and no carry. lse is that
// of tokens and pools. Error: with dropout.
struct PooledAttention : Attention, PoolOperands {
  PooledAttention(Attention a, std::vector<PoolWeights> w = {}, Tensor g = {})
      : Attention(std::move(a)), PoolOperands{.weights = std::move(w), .gates = std::move(g)} {}
};
void pooled_attention(PooledAttention, const ExecContext&);

struct PoolBackwardOperands {
  std::vector<PoolWeights> weights, dweights;  // dweights: f32, overwritten where some document has such a pool
  Tensor gates, dgates;                        // as gates are; overwritten
};

// The same for attention_backward_kernel. Gradients of pools go to their tokens in f32.
struct PooledAttentionBackward : AttentionBackward, PoolBackwardOperands {
  PooledAttentionBackward(AttentionBackward a, std::vector<PoolWeights> w = {}, std::vector<PoolWeights> dw = {})
      : AttentionBackward(std::move(a)), PoolBackwardOperands{.weights = std::move(w), .dweights = std::move(dw)} {}
};
void pooled_attention_backward(PooledAttentionBackward, const ExecContext&);

// Calls f with a reference to each tensor of a call.
template <class Fn>
void for_each_tensor(PooledAttention& a, const Fn& f) {
  static_assert(sizeof(a) == sizeof(Attention) + sizeof(PoolOperands), "all members are those of the bases");
  visit_all<Tensor>(static_cast<Attention&>(a), f);
  visit_all<Tensor>(static_cast<PoolOperands&>(a), f);
}
template <class Fn>
void for_each_tensor(PooledAttentionBackward& a, const Fn& f) {
  static_assert(sizeof(a) == sizeof(AttentionBackward) + sizeof(PoolBackwardOperands), "likewise");
  visit_all<Tensor>(static_cast<AttentionBackward&>(a), f);
  visit_all<Tensor>(static_cast<PoolBackwardOperands&>(a), f);
}

}  // namespace ring
