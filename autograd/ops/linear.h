#pragma once
// Linear layers, y = x w^T + b + r: their three products, and what the ops share that are made of them.

#include "autograd/ops.h"

namespace ring {

template <class T>
struct LinearInputs {
  T x, w, b, residual;
};

// Throws Error, naming `op`, if x, w and b do not go together, or the output has another shape than a residual.
void check_linear(const char* op, const Var& x, const Var& w, const Var& b);
void check_residual(const char* op, const Var& residual, const Shape& output);

// y = x w^T + b + r.
void linear_forward(const ExecContext&, const LinearInputs<Tensor>&, const Tensor& y);
Tensor linear_forward(const ExecContext&, const LinearInputs<Tensor>&);

// dx = beta * dx + dy w.
void input_gradient(const ExecContext&, const Tensor& dy, const Tensor& w, const Sink& dx);
// dw = beta * dw + dy^T x. The next call adds: beta becomes 1.
void weight_gradient(const ExecContext&, const Tensor& dy, const Tensor& x, Sink& dw);
// The gradient of a bias of this shape, if wanted: db = column sums of dy.
void bias_gradient(const Backward&, const SlotPtr& bias, const Tensor& dy, const Shape&, DType);

// The gradients of those inputs that want one. x is made only for the weight's gradient.
void input_gradient(const Backward&, const LinearInputs<SlotPtr>&, const Tensor& dy, const Tensor& w);
void parameter_gradients(const Backward&, const LinearInputs<SlotPtr>&, const Tensor& dy, const Tensor& w,
                         const Saved& x);

// Saves what the gradients are made of: x and w.
LinearInputs<Saved> save_for_gradients(const Run&, const LinearInputs<Var>&);

}  // namespace ring
