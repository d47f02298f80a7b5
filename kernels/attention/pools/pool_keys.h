#pragma once
// Pools as keys: computes pools from tokens, and attention over pools. Used by pooled_attention for whole documents,
// and by context parallelism for documents sharded among ranks (parallel/context/pools/shard_pools.h).

#include <functional>

#include "kernels/attention/pools/block_pool.h"
#include "kernels/attention/pools/pooled_attention.h"

namespace ring {

// Inputs of a call's pools: the token tensors [N,Hk,D], and for each pool size its learned weights and their gradients.
// weights and dweights are empty if pools are means.
struct PoolSource {
  std::vector<std::int32_t> sizes;
  Tensor k, v, scored;
  std::vector<PoolWeights> weights, dweights;
};
// Throw Error if weights or gates do not fit, if a backward lacks their gradients, or if there is dropout.
PoolSource pool_source(const PooledAttention&);
PoolSource pool_source(const PooledAttentionBackward&);

// Returns the rows of the tokens in the pools of whole documents (pool_spans()), for one pool size.
std::vector<PoolSegment> pooled_rows(const std::vector<Span>& documents, std::int32_t pool);

// Tokens [N,Hk,D] from which pools are computed; `rows` says which rows make up which pools. Each pool must be
// complete.
struct PoolTokens {
  Tensor k, v, scored;
  std::vector<PoolSegment> rows;
};

// The pools of the i-th size of a source: means, or sums by learned weights. The context must outlive this object.
class PoolSums {
 public:
  PoolSums(const PoolSource&, std::size_t size_index, std::int64_t num_pools, const ExecContext&);
  // Fills the rows of `keys` and `values` for the pools of these tokens. Overwrites: every pool must be covered by
  // exactly one call.
  void compute_pools(const PoolTokens&);
  // Takes the gradients of `keys` and `values`, f32 [2,pools,Hk,D], and adds the gradients of these tokens to dk and
  // dv, f32 [N,Hk,D]. Each pool must be covered by exactly one call.
  void backward(const PoolTokens&, const Tensor& gradients, const Tensor& dk, const Tensor& dv);
  // Overwrites dweights with the sum over all pools. Call once, after backward() has covered every pool.
  void reduce_weight_gradients() const;

  Tensor keys, values;  // [pools,Hk,D], of the tokens' type

 private:
  std::int32_t size_;
  PoolWeights learned_, dlearned_;        // undefined for means
  Tensor weights_, dpositions_, dquery_;  // per pool: softmax weights, and the gradients that are summed to dlearned_
  const ExecContext& ctx_;
};

// Spans of queries and of their documents' pools. Invariant: no row occurs twice, and each pool is seen by a query of
// its span.
struct PoolCall {
  std::vector<Span> queries, keys;
};

// All pools of one size, at least one.
struct PoolKeys {
  std::int32_t size = 0;        // tokens per pool
  Tensor keys, values;          // [pools,Hk,D]
  std::vector<PoolCall> calls;  // at least one
  // Takes the gradients f32 [2,pools,Hk,D] of keys and values, adds the tokens' gradients to dk and dv (f32), and
  // writes dweights.
  std::function<void(const Tensor& gradients, const Tensor& dk, const Tensor& dv)> backward;
};

// Runs attention over the pools alone, with the gates. Rewrites `pairs` in place: its pattern loses the pools, and its
// carry and lse hold the pools' result. attention_kernel(pairs) must follow, which adds the tokens. Returns the pools'
// log-sum-exp for write_mean_gates(), to be called after that; undefined if there are no pools or no mean gates are
// wanted.
Tensor attend_to_pools(PooledAttention&, const std::vector<PoolKeys>&, const ExecContext&);
// Writes the call's mean_gates if it is defined.
void write_mean_gates(const PooledAttention&, const Tensor& pooled_lse, const ExecContext&);

// Computes the pools' part of the gradients, and writes dgates and dweights. Rewrites `pairs` in place: its
// pattern loses the pools, and its carries hold the pools' part of dq, dk and dv. attention_backward_kernel(pairs) must
// follow, which adds the tokens' part.
void attend_to_pools(PooledAttentionBackward&, const std::vector<PoolKeys>&, const ExecContext&);

}  // namespace ring
