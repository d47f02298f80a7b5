#pragma once
#include "kernels/kernel.h"

namespace ring {

// Bytes of GPU workspace that the GEMMs of a stream keep allocated for as long as the stream lives.
inline constexpr std::size_t kMatmulWorkspaceBytes = std::size_t{64} << 20;

// c = op(a) op(b) + beta * c + residual + bias. op(a) is [M,K] and op(b) is [K,N]: each is the matrix itself or, if
// requested, its transpose. c is [M,N]. Row strides may exceed the width. FLOPs: 2 M N K. Accumulates in f32.
//   a, b      one type, f32 or bf16.
//   c         f32, or bf16 if a is. Not read if beta = 0.
//   bias      [N], of the type of a; added to every row. Requires beta = 0.
//   residual  [M,N], of the type of c, not c itself. Requires beta = 0.
//
// Define one of the next two tensors to fuse GELU into the epilogue. This requires beta = 0, no residual and a
// contiguous c. The tensor must be contiguous, have the shape and type of c, and not overlap c.
//   gelu_input        output: x = op(a) op(b) + bias; then c = gelu_tanh(x).
//   gelu_gradient_at  input: c = op(a) op(b) * gelu_tanh'(gelu_gradient_at). Requires no bias.
struct Matmul {
  Tensor a, b, c;
  bool transpose_a = false, transpose_b = false;
  float beta = 0;
  Tensor bias, residual;                // may be undefined
  Tensor gelu_input, gelu_gradient_at;  // may be undefined
};
inline Cost cost(const Matmul& m) {
  const double k = static_cast<double>(m.a.dim(m.transpose_a ? 0 : 1)), mn = static_cast<double>(m.c.numel());
  std::string shape = str(m.a.dtype(), '[', m.c.dim(0), 'x', m.c.dim(1), 'x', m.a.dim(m.transpose_a ? 0 : 1), ']',
                          m.transpose_a ? 'T' : 'N', m.transpose_b ? 'T' : 'N', m.beta != 0 ? "+c" : "",
                          m.bias.defined() ? "+bias" : "", m.residual.defined() ? "+residual" : "",
                          m.gelu_input.defined() ? "+gelu" : "", m.gelu_gradient_at.defined() ? "+dgelu" : "");
  const Tensor old = m.beta != 0 ? m.c : Tensor{};
  return {2 * mn * k, bytes_of({m.a, m.b, m.c, old, m.bias, m.residual, m.gelu_input, m.gelu_gradient_at}),
          std::move(shape)};
}
inline constinit Kernel<Matmul> matmul_kernel{"matmul"};

// out[C] = beta * out + column sums of x [N,C]: the gradient of a bias. x and out are f32 or bf16; their types may
// differ. Accumulates in f32, in an order that is the same for the same tensors and thread count.
struct ColumnSum {
  Tensor x, out;
  float beta = 0;
};
inline Cost cost(const ColumnSum& a) { return cost_of(a.x, {a.x, a.out}); }
inline constinit Kernel<ColumnSum> column_sum_kernel{"column_sum"};

}  // namespace ring
