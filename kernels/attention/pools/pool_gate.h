#pragma once
#include "kernels/kernel.h"

namespace ring {

// Gates of pools. Gate g[h, t] is added to the scores of all pools that query t of head h sees. The pools' share of the
// softmax is then s = exp(pooled_lse - lse), where pooled_lse is the log-sum-exp over the gated pools, and lse that
// over tokens and pools. If dout is defined, computes the gradient of g, else the mean gate of a query:
//   out[h, t] = s * sum over i of dout[t, h, i] (pooled[t, h, i] - attended[t, h, i])
//   out[h, t] = s * g[h, t]
// pooled is the output of attention over the pools alone, attended the output over tokens and pools. out is 0 for
// queries that see no pool (pooled_lse = -inf).
//   pooled_lse, lse, gates, out  f32 [H,N], contiguous; gates is not used with dout.
//   dout, attended               [N,H,D], one type, f32 or bf16, any strides with unit last dim.
//   pooled                       f32 [N,H,D], contiguous.
struct PoolGate {
  Tensor pooled_lse, lse, gates, out;
  Tensor dout{}, pooled{}, attended{};
};
inline Cost cost(const PoolGate& a) {
  return cost_of(a.out, {a.pooled_lse, a.lse, a.dout, a.pooled, a.attended, a.out});
}
inline constinit Kernel<PoolGate> pool_gate_kernel{"pool_gate"};

// out [B,A] = beta * out + x^T, with x [A,B]. Both contiguous, f32 or bf16; their types may differ.
struct Transpose {
  Tensor x, out;
  float beta = 0;
};
inline Cost cost(const Transpose& a) { return cost_of(a.x, {a.x, a.out}); }
inline constinit Kernel<Transpose> transpose_kernel{"transpose"};

// Throw Error, naming the tensor, if shapes or types do not fit.
void check(const PoolGate&);
void check(const Transpose&);

}  // namespace ring
