#include "kernels/norm.h"

#include "autograd/ops.h"

namespace ring {
namespace {

void check_norm(const char* op, const Tensor& x, const Tensor& w, const Tensor& b) {
  RING_CHECK(x.shape().size() >= 2 && w.shape() == Shape{x.dim(-1)}, op, ": input ", describe(x), " and weight ",
             describe(w), ": the weight must have the input's last dim");
  RING_CHECK(!b.defined() || b.shape() == w.shape(), op, ": weight ", describe(w), " and bias ", describe(b));
}

}  // namespace

Var rms_norm(Run& run, const Var& x, const Var& w, float eps) {
  check_norm("rms_norm", x.value, w.value, {});
  const RmsNorm f{.x = x.value,
                  .w = w.value,
                  .y = run.ctx.empty(x.value.shape()),
                  .rstd = run.ctx.empty({x.value.numel() / x.value.dim(-1)}),
                  .eps = eps};
  rms_norm_kernel(f, run.ctx);
  if (!run.tape) return {f.y, nullptr};
  return run.tape->record("rms_norm", f.y, {x.slot, w.slot}, [x = f.x, w = f.w, rstd = f.rstd](Backward& back) {
    RmsNormBackward b{.x = x, .w = w, .rstd = rstd, .dy = back.grad()};
    if (back.wants(0)) {
      const Sink s = back.sink(0, x.shape());
      b.dx = s.dst, b.beta_x = s.beta;
    }
    if (back.wants(1)) {
      const Sink s = back.sink(1, w.shape());
      b.dw = s.dst, b.beta_w = s.beta;
    }
    rms_norm_backward_kernel(b, back.ctx);
  });
}

Var layer_norm(Run& run, const Var& x, const Var& w, const Var& bias, float eps) {
  check_norm("layer_norm", x.value, w.value, bias.value);
  const Shape rows{x.value.numel() / x.value.dim(-1)};
  const LayerNorm f{.x = x.value,
                    .w = w.value,
                    .b = bias.value,
                    .y = run.ctx.empty(x.value.shape()),
                    .mean = run.ctx.empty(rows),
                    .rstd = run.ctx.empty(rows),
                    .eps = eps};
  layer_norm_kernel(f, run.ctx);
  if (!run.tape) return {f.y, nullptr};
  auto backward = [x = f.x, w = f.w, mean = f.mean, rstd = f.rstd](Backward& back) {
    LayerNormBackward b{.x = x, .w = w, .mean = mean, .rstd = rstd, .dy = back.grad()};
    if (back.wants(0)) {
      const Sink s = back.sink(0, x.shape());
      b.dx = s.dst, b.beta_x = s.beta;
    }
    if (back.wants(1)) {
      const Sink s = back.sink(1, w.shape());
      b.dw = s.dst, b.beta_w = s.beta;
    }
    if (back.wants(2)) {
      const Sink s = back.sink(2, w.shape());
      b.db = s.dst, b.beta_b = s.beta;
    }
    layer_norm_backward_kernel(b, back.ctx);
  };
  return run.tape->record("layer_norm", f.y, {x.slot, w.slot, bias.slot}, std::move(backward));
}

}  // namespace ring
