#include "autograd/ops.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

// y = x w^T + b, so dx = dy w, dw = dy^T x, db = column sums of dy.
void linear_backward(Backward& back, const Tensor& x, const Tensor& w) {
  const Tensor& dy = back.grad();
  if (back.wants(0)) {
    const Sink s = back.sink(0, x.shape());
    matmul_kernel({.a = dy, .b = w, .c = s.dst, .beta = s.beta}, back.ctx);
  }
  if (back.wants(1)) {
    const Sink s = back.sink(1, w.shape());
    matmul_kernel({.a = dy, .b = x, .c = s.dst, .transpose_a = true, .beta = s.beta}, back.ctx);
  }
  if (back.wants(2)) {
    const Sink s = back.sink(2, {w.dim(0)});
    column_sum_kernel({dy, s.dst, s.beta}, back.ctx);
  }
}

}  // namespace

Var linear(Run& run, const Var& x, const Var& w, const Var& b) {
  const bool fits = x.value.shape().size() == 2 && w.value.shape().size() == 2 && x.value.dim(1) == w.value.dim(1);
  RING_CHECK(fits, "linear: input ", describe(x.value), " and weight ", describe(w.value),
             ": the last dims must agree");
  RING_CHECK(!b.value.defined() || b.value.shape() == Shape{w.value.dim(0)}, "linear: bias ", describe(b.value),
             " for weight ", describe(w.value));
  const Tensor y = run.ctx.empty({x.value.dim(0), w.value.dim(0)});
  matmul_kernel({.a = x.value, .b = w.value, .c = y, .transpose_b = true, .bias = b.value}, run.ctx);
  if (!run.tape) return {y, nullptr};
  return run.tape->record("linear", y, {x.slot, w.slot, b.slot},
                          [x = x.value, w = w.value](Backward& back) { linear_backward(back, x, w); });
}

}  // namespace ring
