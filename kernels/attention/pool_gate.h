#pragma once
#include "kernels/kernel.h"

namespace ring {

// Gates of pools: g[h, t] is added to the scores of all pools that query t of head h sees, so that its pools together
// weigh s = exp(pooled_lse - lse), where pooled_lse is their log-sum-exp with the gate and lse that of tokens and
// pools.
//   out[h, t] = s (sum over i of dout[t, h, i] (pooled[t, h, i] - attended[t, h, i])): the gradient of g, with what
//     attention over the pools alone and over all gives; or, without these,
//   out[h, t] = s g[h, t]: the mean gate of a query.
// Rows that see no pool (pooled_lse -inf): 0. pooled_lse, lse, gates, out f32 [H,N], contiguous; dout and attended
// [N,H,D], one type, f32 or bf16, any strides with unit last; pooled f32 [N,H,D], contiguous.
struct PoolGate {
  Tensor pooled_lse, lse, gates, out;
  Tensor dout{}, pooled{}, attended{};
};
inline Cost cost(const PoolGate& a) {
  return cost_of(a.out, {a.pooled_lse, a.lse, a.dout, a.pooled, a.attended, a.out});
}
inline constinit Kernel<PoolGate> pool_gate_kernel{"pool_gate"};

// out [B,A] = beta * out + x^T, x [A,B]: f32 or bf16, each its own, contiguous.
struct Transpose {
  Tensor x, out;
  float beta = 0;
};
inline Cost cost(const Transpose& a) { return cost_of(a.x, {a.x, a.out}); }
inline constinit Kernel<Transpose> transpose_kernel{"transpose"};

// Error: shapes or types. Names the tensor.
void check(const PoolGate&);
void check(const Transpose&);

}  // namespace ring
