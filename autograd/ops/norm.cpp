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

void rms_norm_backward(Backward& back) {
  const Tensor x = back.saved(0), w = back.saved(1), rstd = back.saved(2);
  const Sink dx = wanted(back, 0, x), dw = wanted(back, 1, w);
  rms_norm_backward_kernel({x, w, rstd, back.grad(), dx.dst, dw.dst, dx.beta, dw.beta}, back.ctx);
}

void layer_norm_backward(Backward& back) {
  const Tensor x = back.saved(0), w = back.saved(1), mean = back.saved(2), rstd = back.saved(3);
  const Sink dx = wanted(back, 0, x), dw = wanted(back, 1, w), db = wanted(back, 2, w);
  layer_norm_backward_kernel({x, w, mean, rstd, back.grad(), dx.dst, dw.dst, db.dst, dx.beta, dw.beta, db.beta},
                             back.ctx);
}

}  // namespace

Var rms_norm(Run& run, const Var& x, const Var& w, float eps) {
  check_norm("rms_norm", x.value, w.value, {});
  const RmsNorm f = rms_normed(run.ctx, x.value, w.value, eps);
  if (!run.records(x, w)) return {f.y, nullptr};
  const Saved in = run.save(x), weight = run.save(w);
  const Var out = run.record("rms_norm", f.y, {x.slot, w.slot}, {in, weight, run.save(f.rstd)}, rms_norm_backward);
  if (!run.recompute) return out;
  return recomputable(out, {in, weight}, [eps](const ExecContext& ctx, const Tensors& from) {
    return rms_normed(ctx, from[0], from[1], eps).y;
  });
}

Var layer_norm(Run& run, const Var& x, const Var& w, const Var& bias, float eps) {
  check_norm("layer_norm", x.value, w.value, bias.value);
  const LayerNorm f = layer_normed(run.ctx, x.value, w.value, bias.value, eps);
  if (!run.records(x, w, bias)) return {f.y, nullptr};
  const Saved in = run.save(x), weight = run.save(w);
  const Var out = run.record("layer_norm", f.y, {x.slot, w.slot, bias.slot},
                             {in, weight, run.save(f.mean), run.save(f.rstd)}, layer_norm_backward);
  if (!run.recompute) return out;
  return recomputable(out, {in, weight, run.save(bias)}, [eps](const ExecContext& ctx, const Tensors& from) {
    return layer_normed(ctx, from[0], from[1], from[2], eps).y;
  });
}

}  // namespace ring
