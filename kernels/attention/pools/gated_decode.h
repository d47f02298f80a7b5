#pragma once
#include "kernels/attention/attention.h"

namespace ring {

// AttentionDecode with gates for pools (pool_gate.h). Pools follow the tokens in the cache: every CacheRows that begins
// at row `first` or later holds pools. gates [B,Hq], contiguous and of q's type, are added to the scores of these rows.
struct GatedDecode {
  AttentionDecode decode;
  Tensor gates;
  std::int32_t first = 0;
};
inline Cost cost(const GatedDecode& a) { return cost(a.decode); }
inline constinit Kernel<GatedDecode> gated_decode_kernel{"gated_decode"};

// Throws Error, naming the tensor, if shapes or types do not fit.
inline void check(const GatedDecode& a) {
  check(a.decode);
  RING_CHECK(a.gates.defined() && a.gates.is_contiguous() && a.gates.dtype() == a.decode.q.dtype() &&
                 a.gates.shape() == Shape({a.decode.q.dim(0), a.decode.q.dim(1)}),
             "gated_decode: gates are ", describe(a.gates), " for queries ", describe(a.decode.q));
}

}  // namespace ring
