#include "kernels/norm.h"

#include "autograd/ops.h"

namespace ring {
namespace {

void check_norm(const char* op, const Tensor& x, const Tensor& w, const Tensor& b) {
  RING_CHECK(x.shape().size() >= 2 && w.shape() == Shape{x.dim(-1)}, op, ": input ", describe(x), " and weight ",
             describe(w), ": the weight must have the input's last dim");
  RING_CHECK(!b.defined() || b.shape() == w.shape(), op, ": weight ", describe(w), " and bias ", describe(b));
}

Sink wanted(Backward& back, int input, const Tensor& like) {
  return back.needs_grad(input) ? back.sink(input, like.shape(), like.dtype()) : Sink{};
}

RmsNorm rms_normed(const ExecContext& ctx, const Tensor& x, const Tensor& w, float eps) {
  const RmsNorm f{
      .x = x, .w = w, .y = ctx.empty(x.shape(), x.dtype()), .rstd = ctx.empty({x.numel() / x.dim(-1)}), .eps = eps};
  rms_norm_kernel(f, ctx);
  return f;
}

LayerNorm layer_normed(const ExecContext& ctx, const Tensor& x, const Tensor& w, const Tensor& b, float eps) {
  const Shape rows{x.numel() / x.dim(-1)};
  const LayerNorm f{.x = x,
                    .w = w,
                    .b = b,
                    .y = ctx.empty(x.shape(), x.dtype()),
                    .mean = ctx.empty(rows),
                    .rstd = ctx.empty(rows),
                    .eps = eps};
  layer_norm_kernel(f, ctx);
  return f;
}

}  // namespace

Var rms_norm(Run& run, const Var& x, const Var& w, float eps) {
  check_norm("rms_norm", x.value, w.value, {});
  const RmsNorm f = rms_normed(run.ctx, x.value, w.value, eps);
  if (!run.tape) return {f.y, nullptr};
  const Saved saved(x);
  Var out = run.record("rms_norm", f.y, {x.slot, w.slot}, [saved, w = f.w, rstd = f.rstd](Backward& back) {
    const Tensor in = saved.get(back.ctx);
    const Sink dx = wanted(back, 0, in), dw = wanted(back, 1, w);
    rms_norm_backward_kernel({in, w, rstd, back.grad(), dx.dst, dw.dst, dx.beta, dw.beta}, back.ctx);
  });
  return recomputable(
      run, out, [saved, w = f.w, eps](const ExecContext& ctx) { return rms_normed(ctx, saved.get(ctx), w, eps).y; });
}

Var layer_norm(Run& run, const Var& x, const Var& w, const Var& bias, float eps) {
  check_norm("layer_norm", x.value, w.value, bias.value);
  const LayerNorm f = layer_normed(run.ctx, x.value, w.value, bias.value, eps);
  if (!run.tape) return {f.y, nullptr};
  const Saved saved(x);
  auto backward = [saved, w = f.w, mean = f.mean, rstd = f.rstd](Backward& back) {
    const Tensor in = saved.get(back.ctx);
    const Sink dx = wanted(back, 0, in), dw = wanted(back, 1, w), db = wanted(back, 2, w);
    layer_norm_backward_kernel({in, w, mean, rstd, back.grad(), dx.dst, dw.dst, db.dst, dx.beta, dw.beta, db.beta},
                               back.ctx);
  };
  Var out = run.record("layer_norm", f.y, {x.slot, w.slot, bias.slot}, std::move(backward));
  return recomputable(run, out, [saved, w = f.w, b = f.b, eps](const ExecContext& ctx) {
    return layer_normed(ctx, saved.get(ctx), w, b, eps).y;
  });
}

}  // namespace ring
