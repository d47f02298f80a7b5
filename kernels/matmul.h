#pragma once
#include "kernels/kernel.h"

namespace ring {

// c = op(a) op(b) + beta * c + residual + bias, op = transpose where asked. op(a) is [M,K], op(b) is [K,N], c is [M,N];
// matrices may have a row stride larger than their width. bias [N] is added to every row; residual [M,N] may be c's
// twin elsewhere, not c itself; with either, beta must be 0. beta = 0 never reads c. Sums are f32. Types: a, b and bias
// alike, f32 or bf16; c f32, or bf16 when a is; residual as c. FLOPs: 2 M N K.
struct Matmul {
  Tensor a, b, c;
  bool transpose_a = false, transpose_b = false;
  float beta = 0;
  Tensor bias, residual;  // undefined: none
};
inline Cost cost(const Matmul& m) {
  const double k = static_cast<double>(m.a.dim(m.transpose_a ? 0 : 1)), mn = static_cast<double>(m.c.numel());
  std::string shape = str(m.a.dtype(), '[', m.c.dim(0), 'x', m.c.dim(1), 'x', m.a.dim(m.transpose_a ? 0 : 1), ']',
                          m.transpose_a ? 'T' : 'N', m.transpose_b ? 'T' : 'N', m.beta != 0 ? "+c" : "",
                          m.bias.defined() ? "+bias" : "", m.residual.defined() ? "+residual" : "");
  const Tensor old = m.beta != 0 ? m.c : Tensor{};
  return {2 * mn * k, bytes_of({m.a, m.b, m.c, old, m.bias, m.residual}), std::move(shape)};
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
