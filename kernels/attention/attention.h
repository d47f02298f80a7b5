#pragma once
#include "kernels/kernel.h"

namespace ring {

// Exact softmax attention in O(S) memory (Dao et al. 2022/2023; blocked, log-sum-exp kept), one call for many sequences.
// q, out [N,Hq,D]; k, v [N,Hk,D]; any strides with unit last dim; D a multiple of 8. Query head h reads KV head h * Hk / Hq.
// offsets [B+1] i32 on the host: sequence b holds rows offsets[b] .. offsets[b+1]; tokens attend only inside it, and with
// `causal` only to u <= t. lse [Hq,N] f32, natural logarithm. A row with no key or
// of no sequence: out 0, lse -inf, gradients 0.
// FLOPs of kept pairs: 4 Hq D per pair forward, 10 Hq D backward.
struct Attention {
  Tensor q, k, v, out, lse;
  std::vector<std::int32_t> offsets;
  float scale = 1;
  bool causal = true;
};
inline constinit Kernel<Attention> attention_kernel{"attention"};

// dq, dk, dv: shapes of q, k, v, any strides with unit last; overwritten. P = exp(scale q.k - lse), D = rowsum(dout * out),
// dS = P * (dP - D). Deterministic for a given thread count.
struct AttentionBackward {
  Tensor q, k, v, out, lse, dout;
  Tensor dq, dk, dv;
  std::vector<std::int32_t> offsets;
  float scale = 1;
  bool causal = true;
};
inline constinit Kernel<AttentionBackward> attention_backward_kernel{"attention_backward"};

// One new query per sequence against a cache, for generation: q, out [B,Hq,D]; k, v [B,capacity,Hk,D], the first
// lengths[b] rows valid.
struct AttentionDecode {
  Tensor q, k, v, out;
  std::vector<std::int32_t> lengths;
  float scale = 1;
};
inline constinit Kernel<AttentionDecode> attention_decode_kernel{"attention_decode"};

}  // namespace ring
