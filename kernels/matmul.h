#pragma once
#include "kernels/kernel.h"

namespace ring {

// What products keep of a GPU's memory, for as long as its stream lives.
inline constexpr std::size_t kMatmulWorkspaceBytes = std::size_t{64} << 20;

// c = op(a) op(b) + beta * c + residual + bias, op = transpose where asked. op(a) is [M,K], op(b) is [K,N], c is [M,N];
// matrices may have a row stride larger than their width. bias [N] is added to every row; residual [M,N] may be c's
// twin elsewhere, not c itself; with either, beta must be 0. beta = 0 never reads c. Sums are f32. Types: a, b and bias
// alike, f32 or bf16; c f32, or bf16 when a is; residual as c. FLOPs: 2 M N K.
//
// With gelu_input (output): it gets the product and bias, c gelu_tanh of them. With gelu_gradient_at (input): c = the
// product * gelu_tanh'(gelu_gradient_at). At most one of the two, with neither beta nor residual, the second without
// bias; it and c are contiguous, of one shape and type, and share no bytes.
struct Matmul {
  Tensor a, b, c;
  bool transpose_a = false, transpose_b = false;
  float beta = 0;
  Tensor bias, residual;                // undefined: none
  Tensor gelu_input, gelu_gradient_at;  // undefined: the product is not activated
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

// out[C] = beta * out + column sums of x [N,C]: the gradient of a bias. Fixed order of summation per thread count. x
// and out: f32 or bf16, each its own; sums are f32.
struct ColumnSum {
  Tensor x, out;
  float beta = 0;
};
inline Cost cost(const ColumnSum& a) { return cost_of(a.x, {a.x, a.out}); }
inline constinit Kernel<ColumnSum> column_sum_kernel{"column_sum"};

}  // namespace ring
