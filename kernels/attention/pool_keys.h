#pragma once
// Pools as keys: how they are made of tokens, and attention over them, whoever makes them: pooled_attention of whole
// documents, context parallelism of documents that are cut among ranks (parallel/context/pools.h).

#include <functional>

#include "kernels/attention/block_pool.h"
#include "kernels/attention/pooled_attention.h"

namespace ring {

// What the pools of a call are made of, by its tokens [N,Hk,D] and by size. weights: none for means.
struct PoolSource {
  std::vector<std::int32_t> sizes;
  Tensor k, v, scored;
  std::vector<PoolWeights> weights, dweights;
};
// Error: weights or gates that do not fit, without gradients in a backward, or dropout.
PoolSource pool_source(const PooledAttention&);
PoolSource pool_source(const PooledAttentionBackward&);

// Tokens [N,Hk,D] that lie in whole pools.
struct PoolTokens {
  Tensor k, v, scored;
  std::vector<PooledRows> rows;
};

// Pools of the i-th size of a source: means, or sums by learned weights. The context lives as long.
class PoolSums {
 public:
  PoolSums(const PoolSource&, std::size_t i, std::int64_t pools, const ExecContext&);
  // Makes the pools of these tokens: each pool once.
  void make(const PoolTokens&);
  // From the gradients f32 [2,pools,Hk,D] of keys and values: adds to dk, dv f32 [N,Hk,D] of these tokens.
  void backward(const PoolTokens&, const Tensor& gradients, const Tensor& dk, const Tensor& dv);
  // And to dweights, once it went through all pools.
  void learn() const;

  Tensor keys, values;  // [pools,Hk,D], of the tokens' type

 private:
  std::int32_t size_;
  PoolWeights learned_, dlearned_;        // undefined for means
  Tensor weights_, dpositions_, dquery_;  // of each pool
  const ExecContext& ctx_;
};

// Queries of documents and pools of theirs: no row twice, and each pool is seen by some query of its span.
struct PoolCall {
  std::vector<Span> queries, keys;
};

// All pools of one size, at least one.
struct PoolKeys {
  std::int32_t size = 0;        // tokens
  Tensor keys, values;          // [pools,Hk,D]
  std::vector<PoolCall> calls;  // at least one
  // From the gradients f32 [2,pools,Hk,D] of these queries: adds to dk, dv f32 of the call's tokens, and to dweights.
  std::function<void(const Tensor& gradients, const Tensor& dk, const Tensor& dv)> backward;
};

// Attention over the pools alone, with the gates. The call becomes the one over the pairs of its pattern, which carries
// on from there; without any pool nothing else changes. What it returns goes to mean_gates after that call.
Tensor carry_pools(PooledAttention&, const std::vector<PoolKeys>&, const ExecContext&);
// Where the call asks for them.
void mean_gates(const PooledAttention&, const Tensor& pooled_lse, const ExecContext&);

// The gradients of the pools' part, likewise: dgates, and carries of dq, dk and dv.
void carry_pools(PooledAttentionBackward&, const std::vector<PoolKeys>&, const ExecContext&);

}  // namespace ring
