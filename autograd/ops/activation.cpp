#include "kernels/activation.h"

#include "autograd/ops.h"
#include "kernels/elementwise.h"

namespace ring {
namespace {

// The activation kernels overwrite: where a gradient already is, theirs goes through a temporary.
template <class Write>
void add_gradient(Backward& back, const Tensor& x, const Write& write) {
  if (!back.needs_grad(0)) return;
  const Sink s = back.sink(0, x.shape(), x.dtype());
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

}  // namespace

Var activate(Run& run, const Var& x, Activation kind) {
  const Tensor y = activated(run.ctx, x.value, kind);
  if (!run.records(x)) return {y, nullptr};
  const Saved saved = run.save(x);
  const Var out = run.record("activate", y, {x.slot}, {saved}, [kind](Backward& back) {
    const Tensor in = back.saved(0);
    add_gradient(back, in, [&](const Tensor& dx) {
      activate_backward_kernel({.x = in, .dy = back.grad(), .dx = dx, .kind = kind}, back.ctx);
    });
  });
  if (!run.recompute) return out;
  return recomputable(out, {saved},
                      [kind](const ExecContext& ctx, const Tensors& from) { return activated(ctx, from[0], kind); });
}

Var swiglu(Run& run, const Var& gate_up) {
  const Tensor& in = gate_up.value;
  RING_CHECK(in.shape().size() == 2 && in.dim(1) % 2 == 0, "swiglu: input ", describe(in), ", expected [N,2F]");
  const Tensor y = gated(run.ctx, in);
  if (!run.records(gate_up)) return {y, nullptr};
  const Saved saved = run.save(gate_up);
  const Var out = run.record("swiglu", y, {gate_up.slot}, {saved}, [](Backward& back) {
    const Tensor x = back.saved(0);
    add_gradient(back, x, [&](const Tensor& dx) {
      swiglu_backward_kernel({.gate_up = x, .dy = back.grad(), .dgate_up = dx}, back.ctx);
    });
  });
  if (!run.recompute) return out;
  return recomputable(out, {saved}, [](const ExecContext& ctx, const Tensors& from) { return gated(ctx, from[0]); });
}

}  // namespace ring
