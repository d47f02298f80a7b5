#include "autograd/ops/linear.h"

#include "kernels/embedding.h"
#include "kernels/matmul.h"

namespace ring {

void check_linear(const char* op, const Var& x, const Var& w, const Var& b) {
  const bool fits = x.value.shape().size() == 2 && w.value.shape().size() == 2 && x.value.dim(1) == w.value.dim(1);
  RING_CHECK(fits, op, ": input ", describe(x.value), " and weight ", describe(w.value), ": the last dims must agree");
  RING_CHECK(!b.value.defined() || b.value.shape() == Shape{w.value.dim(0)}, op, ": bias ", describe(b.value),
             " for weight ", describe(w.value));
}

void check_residual(const char* op, const Var& residual, const Shape& output) {
  RING_CHECK(!residual.value.defined() || residual.value.shape() == output, op, ": residual ", describe(residual.value),
             " for an output of ", output);
}

void linear_forward(const ExecContext& ctx, const LinearInputs<Tensor>& in, const Tensor& y) {
  matmul_kernel({.a = in.x, .b = in.w, .c = y, .transpose_b = true, .bias = in.b, .residual = in.residual}, ctx);
}

Tensor linear_forward(const ExecContext& ctx, const LinearInputs<Tensor>& in) {
  const Tensor y = ctx.empty({in.x.dim(0), in.w.dim(0)}, in.x.dtype());
  linear_forward(ctx, in, y);
  return y;
}

// Adds the bias as an embedding table of one row that every token looks up.
void add_bias(const ExecContext& ctx, const Tensor& b, const Tensor& y) {
  embedding_kernel({.ids = ctx.zeros({y.dim(0)}, DType::i32), .table = b.view({1, b.numel()}), .out = y, .add = true},
                   ctx);
}

void input_gradient(const ExecContext& ctx, const Tensor& dy, const Tensor& w, const Sink& dx) {
  matmul_kernel({.a = dy, .b = w, .c = dx.dst, .beta = dx.beta}, ctx);
}

void weight_gradient(const ExecContext& ctx, const Tensor& dy, const Tensor& x, Sink& dw) {
  matmul_kernel({.a = dy, .b = x, .c = dw.dst, .transpose_a = true, .beta = dw.beta}, ctx);
  dw.beta = 1;
}

void bias_gradient(const Backward& back, const SlotPtr& bias, const Tensor& dy, const Shape& shape, DType type) {
  if (!bias) return;
  const Sink s = back.sink(bias, shape, type);
  column_sum_kernel({dy, s.dst, s.beta}, back.ctx);
}

void input_gradient(const Backward& back, const LinearInputs<SlotPtr>& inputs, const Tensor& dy, const Tensor& w) {
  if (inputs.x) input_gradient(back.ctx, dy, w, back.sink(inputs.x, {dy.dim(0), w.dim(1)}, dy.dtype()));
}

void parameter_gradients(const Backward& back, const LinearInputs<SlotPtr>& inputs, const Tensor& dy, const Tensor& w,
                         const Saved& x) {
  if (inputs.w) {
    Sink dw = back.sink(inputs.w, w.shape(), w.dtype());
    weight_gradient(back.ctx, dy, x.get(back.ctx), dw);
  }
  bias_gradient(back, inputs.b, dy, {w.dim(0)}, w.dtype());
}

LinearInputs<Saved> save_for_gradients(const Run& run, const LinearInputs<Var>& in) {
  return {.x = in.w.slot ? run.save(in.x) : Saved{}, .w = run.save(in.w), .b = {}, .residual = {}};
}

Var linear(Run& run, const Var& x, const Var& w, const Var& b, const Var& residual) {
  check_linear("linear", x, w, b);
  check_residual("linear", residual, {x.value.dim(0), w.value.dim(0)});
  const auto forward = [](const ExecContext& ctx, const LinearInputs<Tensor>& in) { return linear_forward(ctx, in); };
  const auto rule = [](const Backward& back, const LinearInputs<SlotPtr>& inputs, const LinearInputs<Saved>& saved) {
    const Tensor kept_w = saved.w.get(back.ctx);
    input_gradient(back, inputs, back.grad(), kept_w);
    parameter_gradients(back, inputs, back.grad(), kept_w, saved.x);
    back.accumulate(inputs.residual, back.grad());
  };
  return run.op("linear", LinearInputs<Var>{x, w, b, residual}, forward, rule, save_for_gradients);
}

}  // namespace ring
