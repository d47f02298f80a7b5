#pragma once
#include "kernels/kernel.h"

namespace ring {

// c = op(a) op(b) + beta * c + bias, op = transpose where asked. op(a) is [M,K], op(b) is [K,N], c is [M,N]; matrices may
// have a row stride larger than their width. bias [N] is added to every row (beta must be 0 then). beta = 0 never reads c.
// FLOPs: 2 M N K.
struct Matmul {
  Tensor a, b, c;
  bool transpose_a = false, transpose_b = false;
  float beta = 0;
  Tensor bias;  // undefined: none
};
inline constinit Kernel<Matmul> matmul_kernel{"matmul"};

// out[C] = beta * out + column sums of x [N,C]: the gradient of a bias. Fixed order of summation per thread count.
struct ColumnSum {
  Tensor x, out;
  float beta = 0;
};
inline constinit Kernel<ColumnSum> column_sum_kernel{"column_sum"};

}  // namespace ring
