#pragma once
#include <vector>

#include "kernels/attention/pattern.h"
#include "kernels/kernel.h"

namespace ring {

// Causal convolution of every channel along its document, followed by SiLU:
//   y[t,c] = silu(sum over j < K of w[c,j] x[t-K+1+j,c])
//   x, y    [N,C], rows may be strided
//   w       [C K], of the type of x: the K weights of a channel are adjacent
//   initial, final  [documents,K-1,C] f32: the K-1 inputs before each document, and the last K-1 inputs up to its end.
//           Without initial, documents start from zeros; without final, nothing is stored. Both may be one tensor.
// y is 0 in rows that belong to no document. Arithmetic is f32.
struct ShortConv {
  Tensor x, w, y;
  Tensor initial, final;
  std::vector<Span> documents;
  std::int64_t kernel() const { return w.numel() / x.dim(1); }  // K
};
inline Cost cost(const ShortConv& a) {
  return cost_of(a.x, {a.x, a.w, a.y}, 2.0 * static_cast<double>(a.x.numel() * a.kernel()));
}
// Returns how many rows a GPU's thread block processes if a row has `items` packs of channels: fewer for short inputs,
// so that there are about 1000 blocks. The result depends on the shape only, not on the GPU.
std::int64_t conv_rows_per_part(std::int64_t rows, std::int64_t items);
std::size_t scratch_bytes(const ShortConv&, const ExecContext&);
inline constinit Kernel<ShortConv> short_conv_kernel{"short_conv"};

// dx = beta_x * dx + gradient; dw and dinitial likewise. Each may be undefined: it is then not computed. On GPUs, dw is
// f32 or bf16, whatever the type of x. dfinal: gradient of `final`, or undefined.
// The gradient of x is 0 in rows that belong to no document.
struct ShortConvBackward {
  Tensor x, w, initial;
  Tensor dy, dfinal;
  Tensor dx, dw, dinitial;
  float beta_x = 0, beta_w = 0, beta_initial = 0;
  std::vector<Span> documents;
  std::int64_t kernel() const { return w.numel() / x.dim(1); }
};
inline Cost cost(const ShortConvBackward& a) {
  return cost_of(a.x, {a.x, a.w, a.dy, a.dx, a.dw}, 6.0 * static_cast<double>(a.x.numel() * a.kernel()));
}
std::size_t scratch_bytes(const ShortConvBackward&, const ExecContext&);
inline constinit Kernel<ShortConvBackward> short_conv_backward_kernel{"short_conv_backward"};

}  // namespace ring
