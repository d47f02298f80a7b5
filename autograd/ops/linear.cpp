#include "autograd/ops/linear.h"

#include "kernels/matmul.h"

namespace ring {
namespace {

// y = x w^T + b + r, so dx = dy w, dw = dy^T x, db = column sums of dy, dr = dy.
void linear_backward(const Backward& back, const LinearInputs<SlotPtr>& inputs, const LinearForBackward& saved) {
  const Tensor& dy = back.grad();
  const Tensor w = saved.w.get(back.ctx);
  if (inputs.x) {
    const Sink s = back.sink(inputs.x, {dy.dim(0), w.dim(1)}, dy.dtype());
    matmul_kernel({.a = dy, .b = w, .c = s.dst, .beta = s.beta}, back.ctx);
  }
  if (inputs.w) {
    const Tensor x = saved.x.get(back.ctx);
    const Sink s = back.sink(inputs.w, w.shape(), w.dtype());
    matmul_kernel({.a = dy, .b = x, .c = s.dst, .transpose_a = true, .beta = s.beta}, back.ctx);
  }
  bias_backward(back, inputs.b, {w.dim(0)}, w.dtype());
  back.accumulate(inputs.residual, dy);
}

Tensor product(const ExecContext& ctx, const LinearInputs<Tensor>& in) {
  const Tensor y = ctx.empty({in.x.dim(0), in.w.dim(0)}, in.x.dtype());
  matmul_kernel({.a = in.x, .b = in.w, .c = y, .transpose_b = true, .bias = in.b, .residual = in.residual}, ctx);
  return y;
}

}  // namespace

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

LinearInputs<SlotPtr> linear_slots(const Var& x, const Var& w, const Var& b, const Var& residual) {
  return {.x = x.slot, .w = w.slot, .b = b.slot, .residual = residual.slot};
}

LinearInputs<Saved> save_to_recompute(const Run& run, const LinearForBackward& saved, const Var& b,
                                      const Var& residual) {
  return {.x = saved.x, .w = saved.w, .b = run.save(b), .residual = run.save(residual)};
}

void bias_backward(const Backward& back, const SlotPtr& bias, const Shape& shape, DType type) {
  if (!bias) return;
  const Sink s = back.sink(bias, shape, type);
  column_sum_kernel({back.grad(), s.dst, s.beta}, back.ctx);
}

Var linear(Run& run, const Var& x, const Var& w, const Var& b, const Var& residual) {
  check_linear("linear", x, w, b);
  check_residual("linear", residual, {x.value.dim(0), w.value.dim(0)});
  const Tensor y = product(run.ctx, {x.value, w.value, b.value, residual.value});
  if (!run.records(x, w, b, residual)) return {y, nullptr};
  const LinearForBackward saved{.x = run.save(x), .w = run.save(w)};
  const Var out = run.record("linear", y, linear_slots(x, w, b, residual), saved, linear_backward);
  if (!run.recompute) return out;
  return recomputable(out, save_to_recompute(run, saved, b, residual), product);
}

}  // namespace ring
