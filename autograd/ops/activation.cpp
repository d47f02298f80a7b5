#include "kernels/activation.h"

#include "autograd/ops.h"
#include "kernels/elementwise.h"

namespace ring {
namespace {

// Adds an activation's gradient. The kernels overwrite their output, so if a gradient already exists, the new one is
// written to a temporary tensor first.
template <class Write>
void add_gradient(const Backward& back, const SlotPtr& input, const Tensor& x, const Write& write) {
  const Sink s = back.sink(input, x.shape(), x.dtype());
  if (s.beta == 0) return write(s.dst);
  const Tensor gradient = back.ctx.empty(x.shape(), x.dtype());
  write(gradient);
  axpby_kernel({.x = gradient, .y = s.dst, .out = s.dst, .alpha = 1, .beta = s.beta}, back.ctx);
}

Tensor activated(const ExecContext& ctx, const Tensor& x, Activation kind) {
  const Tensor y = ctx.empty(x.shape(), x.dtype());
  activate_kernel({.x = x, .y = y, .kind = kind}, ctx);
  return y;
}

Tensor gated(const ExecContext& ctx, const Tensor& gate_up) {
  const Tensor y = ctx.empty({gate_up.dim(0), gate_up.dim(1) / 2}, gate_up.dtype());
  swiglu_kernel({.gate_up = gate_up, .y = y}, ctx);
  return y;
}

Saved keep(const Run& run, const Var& in) { return run.save(in); }

}  // namespace

Var activate(Run& run, const Var& x, Activation kind) {
  const auto forward = [kind](const ExecContext& ctx, const Tensor& in) { return activated(ctx, in, kind); };
  const auto rule = [kind](const Backward& back, const SlotPtr& input, const Saved& saved_x) {
    const Tensor in = saved_x.get(back.ctx);
    add_gradient(back, input, in, [&](const Tensor& dx) {
      activate_backward_kernel({.x = in, .dy = back.grad(), .dx = dx, .kind = kind}, back.ctx);
    });
  };
  return run.op("activate", x, forward, rule, keep);
}

Var swiglu(Run& run, const Var& gate_up) {
  const Tensor& in = gate_up.value;
  RING_CHECK(in.shape().size() == 2 && in.dim(1) % 2 == 0, "swiglu: input ", describe(in), ", expected [N,2F]");
  const auto rule = [](const Backward& back, const SlotPtr& input, const Saved& saved_x) {
    const Tensor x = saved_x.get(back.ctx);
    add_gradient(back, input, x, [&](const Tensor& dx) {
      swiglu_backward_kernel({.gate_up = x, .dy = back.grad(), .dgate_up = dx}, back.ctx);
    });
  };
  return run.op("swiglu", gate_up, gated, rule, keep);
}

}  // namespace ring
