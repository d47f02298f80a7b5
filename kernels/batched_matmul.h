#pragma once
#include "kernels/kernel.h"

namespace ring {

// c[i] = alpha op(a[i]) op(b[i]) + beta add[i] for every i in [0, B). op(a[i]) is [M,K] and op(b[i]) is [K,N]: each is
// the matrix itself or, if requested, its transpose. c and add are [B,M,N]. All tensors are contiguous and of one type,
// f32 or bf16. Accumulates in f32. c must not overlap the other tensors. FLOPs: 2 B M N K.
struct BatchedMatmul {
  Tensor a, b, c;
  bool transpose_a = false, transpose_b = false;
  float alpha = 1;
  Tensor add;  // may be undefined
  float beta = 1;
};
inline Cost cost(const BatchedMatmul& m) {
  const double k = static_cast<double>(m.a.dim(m.transpose_a ? 1 : 2)), out = static_cast<double>(m.c.numel());
  std::string shape =
      str(m.a.dtype(), '[', m.c.dim(0), "][", m.c.dim(1), 'x', m.c.dim(2), 'x', m.a.dim(m.transpose_a ? 1 : 2), ']',
          m.transpose_a ? 'T' : 'N', m.transpose_b ? 'T' : 'N', m.add.defined() ? "+add" : "");
  return {2 * out * k, bytes_of({m.a, m.b, m.c, m.add}), std::move(shape)};
}
inline constinit Kernel<BatchedMatmul> batched_matmul_kernel{"batched_matmul"};

// Throws Error if shapes or types do not fit.
void check(const BatchedMatmul&);

}  // namespace ring
