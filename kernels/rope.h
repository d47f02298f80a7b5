#pragma once
#include "kernels/rows.h"

namespace ring {

// Rotary position embedding, rotate-half form (Su et al. 2021, eq. 34, with pairs (i, i + D/2) as in Llama). In each
// head of token n, rotates (x_i, x_{i+D/2}) by the angle positions[n] * inv_freq[i] (if `inverse`, for the backward, by
// the negative angle): out = beta * out + rotated x.
//   x, out     [N,H,D], one type, f32 or bf16, any strides with unit last dim; out may be x.
//   positions  [N] i32; inv_freq [D/2] f32. Angles and arithmetic are f32 or better.
struct Rope {
  Tensor x, out, positions, inv_freq;
  bool inverse = false;
  float beta = 0;
};
inline void check_rope(const Rope& a) {
  const Tensor& x = a.x;
  RING_CHECK(x.shape().size() == 3 && x.dim(2) % 2 == 0, "rope: x is ", describe(x), ", expected [N,H,D] with even D");
  check_shape("rope", "out", a.out, x.shape());
  RING_CHECK(x.stride(2) == 1 && a.out.stride(2) == 1, "rope: the last dim is strided");
  check_numel("rope", "positions", a.positions, x.dim(0));
  check_numel("rope", "inv_freq", a.inv_freq, x.dim(2) / 2);
}
inline Cost cost(const Rope& a) { return cost_of(a.x, {a.x, a.beta != 0 ? a.out : Tensor{}, a.out}); }
inline constinit Kernel<Rope> rope_kernel{"rope"};

}  // namespace ring
