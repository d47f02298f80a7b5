#include "autograd/ops.h"
#include "kernels/elementwise.h"

namespace ring {
namespace {

template <class T>
struct Terms {
  T a, b;
};

Tensor sum(const ExecContext& ctx, const Terms<Tensor>& of) {
  const Tensor y = ctx.empty(of.a.shape(), of.a.dtype());
  axpby_kernel({.x = of.a, .y = of.b, .out = y, .alpha = 1, .beta = 1}, ctx);
  return y;
}

Tensor times(const ExecContext& ctx, const Tensor& x, float factor) {
  const Tensor y = ctx.empty(x.shape(), x.dtype());
  axpby_kernel({.x = x, .y = {}, .out = y, .alpha = factor}, ctx);
  return y;
}

}  // namespace

Var scale(Run& run, const Var& x, float factor) {
  const auto forward = [factor](const ExecContext& ctx, const Tensor& in) { return times(ctx, in, factor); };
  return run.op("scale", x, forward, [factor](const Backward& back, const SlotPtr& input) {
    back.accumulate(input, times(back.ctx, back.grad(), factor));
  });
}

Var add(Run& run, const Var& a, const Var& b) {
  RING_CHECK(a.value.shape() == b.value.shape(), "add: ", describe(a.value), " and ", describe(b.value),
             ": shapes differ");
  return run.op("add", Terms<Var>{a, b}, sum, [](const Backward& back, const Terms<SlotPtr>& terms) {
    back.accumulate(terms.a, back.grad());
    back.accumulate(terms.b, back.grad());
  });
}

}  // namespace ring
