#pragma once
#include "kernels/attention/block_pool.h"

namespace ring {

// Pools that learn which of their tokens count: a small form of the compression of NSA (Yuan et al. 2025, section
// 3.3.1), which has positions within a block, too. Of each pool and head h, over its p rows n, the r-th at place r:
//   w[n] = softmax over r of (positions[h, r] + query[h] . x[n, h]),  keys = sum w[n] k[n, h],  values = sum w[n] v[n,
//   h]
// With positions and query of 0 these are the bits of block_pool's means.
// k, v, x [N,H,D], one type, f32 or bf16, any strides with unit last; positions [H,p], query [H,D] of that type,
// contiguous; keys, values [pools,H,D] of that type, contiguous, may be other rows of k and v; weights f32 [pools,H,p]
// takes w. rows: of whole pools. Sums are f32 in a fixed order.
struct WeightedPool {
  Tensor k, v, x, positions, query;
  Tensor keys, values, weights;
  std::vector<PooledRows> rows;
};
inline Cost cost(const WeightedPool& a) { return cost_of(a.k, {a.k, a.v, a.keys, a.values, a.weights}); }
inline constinit Kernel<WeightedPool> weighted_pool_kernel{"weighted_pool"};

// Its gradient where x is v: with dw[n] = k[n] . dkeys + v[n] . dvalues and ds[n] = w[n] (dw[n] - sum w dw),
//   dk[n] += w[n] dkeys,  dv[n] += w[n] dvalues + ds[n] query;
// dpositions takes ds of each pool, dquery the sum of ds[n] v[n], whose sums over pools are the gradients.
// dkeys, dvalues, dquery f32 [pools,H,D], dpositions f32 [pools,H,p], contiguous; dk, dv f32 [N,H,D], any strides with
// unit last; no row of them is in two pools. Pools that no rows make keep what they hold.
struct WeightedPoolBackward {
  Tensor k, v, query, weights, dkeys, dvalues;
  Tensor dk, dv, dpositions, dquery;
  std::vector<PooledRows> rows;
};
inline Cost cost(const WeightedPoolBackward& a) {
  return cost_of(a.dk, {a.k, a.v, a.weights, a.dkeys, a.dvalues, a.dk, a.dk, a.dv, a.dv, a.dpositions, a.dquery});
}
inline constinit Kernel<WeightedPoolBackward> weighted_pool_backward_kernel{"weighted_pool_backward"};

// Error: shapes, types, or rows that are no whole pools or that one of the tensors does not have.
void check(const WeightedPool&);
void check(const WeightedPoolBackward&);

}  // namespace ring
