#include "kernels/activation.h"

#include "autograd/ops.h"
#include "kernels/elementwise.h"

namespace ring {
namespace {

// The activation kernels overwrite: where a gradient already is, theirs goes through a temporary.
template <class Write>
void add_gradient(Backward& back, const Shape& shape, const Write& write) {
  if (!back.wants(0)) return;
  const Sink s = back.sink(0, shape);
  if (s.beta == 0) return write(s.dst);
  const Tensor gradient = back.ctx.empty(shape);
  write(gradient);
  axpby_kernel({.x = gradient, .y = s.dst, .out = s.dst, .alpha = 1, .beta = s.beta}, back.ctx);
}

}  // namespace

Var activate(Run& run, const Var& x, Activation kind) {
  const Tensor y = run.ctx.empty(x.value.shape());
  activate_kernel({.x = x.value, .y = y, .kind = kind}, run.ctx);
  if (!run.tape) return {y, nullptr};
  return run.tape->record("activate", y, {x.slot}, [x = x.value, kind](Backward& back) {
    add_gradient(back, x.shape(), [&](const Tensor& dx) {
      activate_backward_kernel({.x = x, .dy = back.grad(), .dx = dx, .kind = kind}, back.ctx);
    });
  });
}

Var swiglu(Run& run, const Var& gate_up) {
  const Tensor& in = gate_up.value;
  RING_CHECK(in.shape().size() == 2 && in.dim(1) % 2 == 0, "swiglu: input ", describe(in), ", expected [N,2F]");
  const Tensor y = run.ctx.empty({in.dim(0), in.dim(1) / 2});
  swiglu_kernel({.gate_up = in, .y = y}, run.ctx);
  if (!run.tape) return {y, nullptr};
  return run.tape->record("swiglu", y, {gate_up.slot}, [in](Backward& back) {
    add_gradient(back, in.shape(), [&](const Tensor& dx) {
      swiglu_backward_kernel({.gate_up = in, .dy = back.grad(), .dgate_up = dx}, back.ctx);
    });
  });
}

}  // namespace ring
