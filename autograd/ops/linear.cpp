#include "autograd/ops/linear.h"

#include "kernels/matmul.h"

namespace ring {
namespace {

// y = x w^T + b + r, so dx = dy w, dw = dy^T x, db = column sums of dy, dr = dy. Saved: x, w.
void linear_backward(Backward& back) {
  const Tensor& dy = back.grad();
  const Tensor w = back.saved(1);
  if (back.needs_grad(0)) {
    const Sink s = back.sink(0, {dy.dim(0), w.dim(1)}, dy.dtype());
    matmul_kernel({.a = dy, .b = w, .c = s.dst, .beta = s.beta}, back.ctx);
  }
  if (back.needs_grad(1)) {
    const Tensor x = back.saved(0);
    const Sink s = back.sink(1, w.shape(), w.dtype());
    matmul_kernel({.a = dy, .b = x, .c = s.dst, .transpose_a = true, .beta = s.beta}, back.ctx);
  }
  bias_backward(back, 2, {w.dim(0)}, w.dtype());
  if (back.needs_grad(3)) back.accumulate(3, dy);
}

Tensor product(const ExecContext& ctx, const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& residual) {
  const Tensor y = ctx.empty({x.dim(0), w.dim(0)}, x.dtype());
  matmul_kernel({.a = x, .b = w, .c = y, .transpose_b = true, .bias = b, .residual = residual}, ctx);
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

void bias_backward(Backward& back, int input, const Shape& bias, DType type) {
  if (!back.needs_grad(input)) return;
  const Sink s = back.sink(input, bias, type);
  column_sum_kernel({back.grad(), s.dst, s.beta}, back.ctx);
}

Var linear(Run& run, const Var& x, const Var& w, const Var& b, const Var& residual) {
  check_linear("linear", x, w, b);
  check_residual("linear", residual, {x.value.dim(0), w.value.dim(0)});
  const Tensor y = product(run.ctx, x.value, w.value, b.value, residual.value);
  if (!run.records(x, w, b, residual)) return {y, nullptr};
  const Saved in = run.save(x), weight = run.save(w);
  const Var out = run.record("linear", y, {x.slot, w.slot, b.slot, residual.slot}, {in, weight}, linear_backward);
  if (!run.recompute) return out;
  return recomputable(
      out, {in, weight, run.save(b), run.save(residual)},
      [](const ExecContext& ctx, const Tensors& from) { return product(ctx, from[0], from[1], from[2], from[3]); });
}

}  // namespace ring
