#include "kernels/norm.h"

#include "autograd/ops.h"

namespace ring {
namespace {

void check_norm(const char* op, const Tensor& x, const Tensor& w, const Tensor& b) {
  RING_CHECK(x.shape().size() >= 2 && w.shape() == Shape{x.dim(-1)}, op, ": input ", describe(x), " and weight ",
             describe(w), ": the weight must have the input's last dim");
  RING_CHECK(!b.defined() || b.shape() == w.shape(), op, ": weight ", describe(w), " and bias ", describe(b));
}

template <class T>
struct RmsInputs {
  T x, w;
};

template <class T>
struct LayerInputs {
  T x, w, b;
};

template <class T>
struct RmsForBackward {
  RmsInputs<T> inputs;
  T rstd;
};

template <class T>
struct LayerForBackward {
  T x, w, mean, rstd;
};

RmsNorm rms_normed(const ExecContext& ctx, const RmsInputs<Tensor>& in, float eps) {
  const auto& [x, w] = in;
  const RmsNorm f{
      .x = x, .w = w, .y = ctx.empty(x.shape(), x.dtype()), .rstd = ctx.empty({x.numel() / x.dim(-1)}), .eps = eps};
  rms_norm_kernel(f, ctx);
  return f;
}

LayerNorm layer_normed(const ExecContext& ctx, const LayerInputs<Tensor>& in, float eps) {
  const auto& [x, w, b] = in;
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

Sink sink_like(const Backward& back, const SlotPtr& input, const Tensor& like) {
  return back.sink(input, like.shape(), like.dtype());
}

void rms_norm_backward(const Backward& back, const RmsInputs<SlotPtr>& inputs, const RmsForBackward<Saved>& saved) {
  const auto [in, rstd] = get_all(saved, back.ctx);
  const Sink dx = sink_like(back, inputs.x, in.x), dw = sink_like(back, inputs.w, in.w);
  rms_norm_backward_kernel({in.x, in.w, rstd, back.grad(), dx.dst, dw.dst, dx.beta, dw.beta}, back.ctx);
}

void layer_norm_backward(const Backward& back, const LayerInputs<SlotPtr>& inputs,
                         const LayerForBackward<Saved>& saved) {
  const auto [x, w, mean, rstd] = get_all(saved, back.ctx);
  const Sink dx = sink_like(back, inputs.x, x), dw = sink_like(back, inputs.w, w), db = sink_like(back, inputs.b, w);
  layer_norm_backward_kernel({x, w, mean, rstd, back.grad(), dx.dst, dw.dst, db.dst, dx.beta, dw.beta, db.beta},
                             back.ctx);
}

}  // namespace

Var rms_norm(Run& run, const Var& x, const Var& w, float eps) {
  check_norm("rms_norm", x.value, w.value, {});
  const RmsNorm f = rms_normed(run.ctx, {x.value, w.value}, eps);
  if (!run.records(x, w)) return {f.y, nullptr};
  const RmsForBackward<Saved> saved{{run.save(x), run.save(w)}, run.save(f.rstd)};
  const Var out = run.record("rms_norm", f.y, RmsInputs<SlotPtr>{x.slot, w.slot}, saved, rms_norm_backward);
  if (!run.recompute) return out;
  return recomputable(out, saved.inputs, [eps](const ExecContext& ctx, const RmsInputs<Tensor>& in) {
    return rms_normed(ctx, in, eps).y;
  });
}

Var layer_norm(Run& run, const Var& x, const Var& w, const Var& bias, float eps) {
  check_norm("layer_norm", x.value, w.value, bias.value);
  const LayerNorm f = layer_normed(run.ctx, {x.value, w.value, bias.value}, eps);
  if (!run.records(x, w, bias)) return {f.y, nullptr};
  const LayerForBackward<Saved> saved{
      .x = run.save(x), .w = run.save(w), .mean = run.save(f.mean), .rstd = run.save(f.rstd)};
  const Var out =
      run.record("layer_norm", f.y, LayerInputs<SlotPtr>{x.slot, w.slot, bias.slot}, saved, layer_norm_backward);
  if (!run.recompute) return out;
  return recomputable(
      out, LayerInputs<Saved>{saved.x, saved.w, run.save(bias)},
      [eps](const ExecContext& ctx, const LayerInputs<Tensor>& in) { return layer_normed(ctx, in, eps).y; });
}

}  // namespace ring
