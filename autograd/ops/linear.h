#pragma once
// What linear layers share, sliced or not: y = x w^T + b + r.

#include "autograd/ops.h"

namespace ring {

// Error, naming `op`: x, w and b do not go together, or a residual is not of the output's shape.
void check_linear(const char* op, const Var& x, const Var& w, const Var& b);
void check_residual(const char* op, const Var& residual, const Shape& output);

template <class T>
struct LinearInputs {
  T x, w, b, residual;
};

struct LinearForBackward {
  Saved x, w;
};

LinearInputs<SlotPtr> linear_slots(const Var& x, const Var& w, const Var& b, const Var& residual);
// All inputs, to compute the output again: those that the backward needs, too, are saved once.
LinearInputs<Saved> save_to_recompute(const Run&, const LinearForBackward&, const Var& b, const Var& residual);

// The gradient of a bias of this shape: column sums of dy.
void bias_backward(const Backward&, const SlotPtr& bias, const Shape&, DType);

}  // namespace ring
