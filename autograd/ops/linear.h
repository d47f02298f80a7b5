#pragma once
// What linear layers share, sliced or not: y = x w^T + b + r.

#include "autograd/ops.h"

namespace ring {

// Error, naming `op`: x, w and b do not go together, or a residual is not of the output's shape.
void check_linear(const char* op, const Var& x, const Var& w, const Var& b);
void check_residual(const char* op, const Var& residual, const Shape& output);

// The gradient of a bias, which is this input of the op: column sums of dy.
void bias_backward(Backward& back, int input, const Shape& bias, DType type);

}  // namespace ring
