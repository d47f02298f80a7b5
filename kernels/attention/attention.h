#pragma once
#include "kernels/kernel.h"

namespace ring {

// Exact softmax attention in O(S) memory (Dao et al. 2022/2023; blocked, log-sum-exp kept), one call for many
// sequences. q, out [N,Hq,D]; k, v [N,Hk,D]; any strides with unit last dim; D a multiple of 8. Query head h reads KV
// head h * Hk / Hq. offsets [B+1] i32 on the host: sequence b holds rows offsets[b] .. offsets[b+1]; tokens attend only
// inside it, and with `causal` only to u <= t. lse [Hq,N] f32, natural logarithm. A row with no key or of no sequence:
// out 0, lse -inf, gradients 0. q, k, v, out: one type, f32 or bf16; scores and sums are f32. FLOPs of kept pairs: 4 Hq
// D per pair forward, 10 Hq D backward.
struct Attention {
  Tensor q, k, v, out, lse;
  std::vector<std::int32_t> offsets;
  float scale = 1;
  bool causal = true;
};
// Pairs of query and key that are computed, over all sequences, per head.
inline double kept_pairs(const std::vector<std::int32_t>& offsets, bool causal) {
  double pairs = 0;
  for (std::size_t b = 1; b < offsets.size(); ++b) {
    const double n = offsets[b] - offsets[b - 1];
    pairs += causal ? n * (n + 1) / 2 : n * n;
  }
  return pairs;
}
inline Cost cost(const Attention& a) {
  const double per_pair = 4.0 * static_cast<double>(a.q.dim(1) * a.q.dim(2));
  return cost_of(a.q, {a.q, a.k, a.v, a.out, a.lse}, per_pair * kept_pairs(a.offsets, a.causal));
}
inline constinit Kernel<Attention> attention_kernel{"attention"};

// dq, dk, dv: shapes of q, k, v, any strides with unit last; overwritten. P = exp(scale q.k - lse), D = rowsum(dout *
// out), dS = P * (dP - D). Deterministic for a given thread count where the context asks for it (CPU: always).
struct AttentionBackward {
  Tensor q, k, v, out, lse, dout;
  Tensor dq, dk, dv;
  std::vector<std::int32_t> offsets;
  float scale = 1;
  bool causal = true;
};
inline Cost cost(const AttentionBackward& a) {
  const double per_pair = 10.0 * static_cast<double>(a.q.dim(1) * a.q.dim(2));
  return cost_of(a.q, {a.q, a.k, a.v, a.out, a.lse, a.dout, a.dq, a.dk, a.dv},
                 per_pair * kept_pairs(a.offsets, a.causal));
}
inline constinit Kernel<AttentionBackward> attention_backward_kernel{"attention_backward"};

// One new query per sequence against a cache, for generation: q, out [B,Hq,D]; k, v [B,capacity,Hk,D], the first
// lengths[b] rows valid.
struct AttentionDecode {
  Tensor q, k, v, out;
  std::vector<std::int32_t> lengths;
  float scale = 1;
};
inline Cost cost(const AttentionDecode& a) { return cost_of(a.q, {a.q, a.k, a.v, a.out}); }
inline constinit Kernel<AttentionDecode> attention_decode_kernel{"attention_decode"};

}  // namespace ring
