#pragma once
#include "kernels/attention/pools/block_pool.h"

namespace ring {

// Pools with learned token weights: a small form of NSA's compression (Yuan et al. 2025, section 3.3.1), which also has
// positions within a block. For each pool and head h, over the pool's p rows n (row n is the r-th of them):
//   w[n] = softmax over r of (positions[h, r] + query[h] . x[n, h])
//   keys = sum over n of w[n] k[n, h],  values = sum over n of w[n] v[n, h]
// If positions and query are 0, keys and values are bit-identical to the means of block_pool.
//   k, v, x       [N,H,D], one type, f32 or bf16, any strides with unit last dim.
//   positions     [H,p], query [H,D], of the same type, contiguous.
//   keys, values  [pools,H,D], of the same type, contiguous; may be in the storage of k and v if no rows overlap.
//   weights       output f32 [pools,H,p]: w, which the backward needs.
//   rows          whole pools only.
// Accumulates in f32, in a fixed order.
struct WeightedPool {
  Tensor k, v, x, positions, query;
  Tensor keys, values, weights;
  std::vector<PoolSegment> rows;
};
inline Cost cost(const WeightedPool& a) { return cost_of(a.k, {a.k, a.v, a.keys, a.values, a.weights}); }
inline constinit Kernel<WeightedPool> weighted_pool_kernel{"weighted_pool"};

// Backward of WeightedPool with x = v. With dw[n] = k[n] . dkeys + v[n] . dvalues and ds[n] = w[n] (dw[n] - sum w dw),
//   dk[n] += w[n] dkeys,  dv[n] += w[n] dvalues + ds[n] query,
//   dpositions[pool, h, r] = ds[n],  dquery[pool, h] = sum over n of ds[n] v[n].
// The caller sums dpositions and dquery over the pools.
//   dkeys, dvalues, dquery  f32 [pools,H,D], dpositions f32 [pools,H,p], contiguous.
//   dk, dv                  f32 [N,H,D], any strides with unit last dim. No row may be in two pools.
// dpositions and dquery of pools without `rows` are left unchanged.
struct WeightedPoolBackward {
  Tensor k, v, query, weights, dkeys, dvalues;
  Tensor dk, dv, dpositions, dquery;
  std::vector<PoolSegment> rows;
};
inline Cost cost(const WeightedPoolBackward& a) {
  return cost_of(a.dk, {a.k, a.v, a.weights, a.dkeys, a.dvalues, a.dk, a.dk, a.dv, a.dv, a.dpositions, a.dquery});
}
inline constinit Kernel<WeightedPoolBackward> weighted_pool_backward_kernel{"weighted_pool_backward"};

// Throw Error if shapes or types do not fit, if rows are not whole pools, or if a tensor lacks some of the rows.
void check(const WeightedPool&);
void check(const WeightedPoolBackward&);

}  // namespace ring
