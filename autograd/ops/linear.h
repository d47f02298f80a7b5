#pragma once
// Linear layers, y = x w^T + b + r: their three GEMMs, and helpers shared by ops that contain them.

#include "autograd/ops.h"

namespace ring {

template <class T>
struct LinearInputs {
  T x, w, b, residual;
};

// Throw Error, naming `op`, if the shapes of x, w and b do not fit, or a residual's shape differs from the output's.
void check_linear(const char* op, const Var& x, const Var& w, const Var& b);
void check_residual(const char* op, const Var& residual, const Shape& output);

// Compute y = x w^T + b + r.
void linear_forward(const ExecContext&, const LinearInputs<Tensor>&, const Tensor& y);
Tensor linear_forward(const ExecContext&, const LinearInputs<Tensor>&);

// Adds b to each row of y.
void add_bias(const ExecContext&, const Tensor& b, const Tensor& y);

// Computes dx = beta * dx + dy w.
void input_gradient(const ExecContext&, const Tensor& dy, const Tensor& w, const Sink& dx);
// Computes dw = beta * dw + dy^T x, and sets beta to 1 so that the next call adds.
void weight_gradient(const ExecContext&, const Tensor& dy, const Tensor& x, Sink& dw);
// Computes the gradient of a bias of this shape, if wanted: db = column sums of dy.
void bias_gradient(const Backward&, const SlotPtr& bias, const Tensor& dy, const Shape&, DType);

// Compute the gradients of the inputs that need one. x is fetched only for the weight's gradient.
void input_gradient(const Backward&, const LinearInputs<SlotPtr>&, const Tensor& dy, const Tensor& w);
void parameter_gradients(const Backward&, const LinearInputs<SlotPtr>&, const Tensor& dy, const Tensor& w,
                         const Saved& x);

// Saves the inputs that gradients need: w, and x if w has a gradient.
LinearInputs<Saved> save_for_gradients(const Run&, const LinearInputs<Var>&);

}  // namespace ring
