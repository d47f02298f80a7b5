#include "kernels/norm.h"

#include "autograd/ops.h"

namespace ring {
namespace {

void check_norm(const char* op, const Tensor& x, const Tensor& w, const Tensor& b) {
  RING_CHECK(x.shape().size() >= 2 && w.shape() == Shape{x.dim(-1)}, op, ": input ", describe(x), " and weight ",
             describe(w), ": the weight must have the input's last dim");
  RING_CHECK(!b.defined() || b.shape() == w.shape(), op, ": weight ", describe(w), " and bias ", describe(b));
}

// b: optional bias of a layer norm.
template <class T>
struct NormInputs {
  T x, w, b;
};

template <class T>
struct NormForBackward {
  NormInputs<T> inputs;  // b is not saved
  T mean, rstd;
};

// mean: undefined for an RMS norm.
struct Normed {
  Tensor y, mean, rstd;
};

struct RmsForward {
  float w_offset;

  Normed operator()(const ExecContext& ctx, const NormInputs<Tensor>& in, float eps) const {
    const Normed n{ctx.empty(in.x.shape(), in.x.dtype()), {}, ctx.empty({in.x.numel() / in.x.dim(-1)})};
    rms_norm_kernel({.x = in.x, .w = in.w, .y = n.y, .rstd = n.rstd, .eps = eps, .w_offset = w_offset}, ctx);
    return n;
  }
};

Normed layer_normed(const ExecContext& ctx, const NormInputs<Tensor>& in, float eps) {
  const Shape rows{in.x.numel() / in.x.dim(-1)};
  const Normed n{ctx.empty(in.x.shape(), in.x.dtype()), ctx.empty(rows), ctx.empty(rows)};
  layer_norm_kernel({.x = in.x, .w = in.w, .b = in.b, .y = n.y, .mean = n.mean, .rstd = n.rstd, .eps = eps}, ctx);
  return n;
}

Sink sink_like(const Backward& back, const SlotPtr& input, const Tensor& like) {
  return back.sink(input, like.shape(), like.dtype());
}

struct RmsBackward {
  float w_offset;

  void operator()(const Backward& back, const NormInputs<SlotPtr>& inputs, const NormForBackward<Saved>& saved) const {
    const auto [in, mean, rstd] = get_all(saved, back.ctx);
    const Sink dx = sink_like(back, inputs.x, in.x), dw = sink_like(back, inputs.w, in.w);
    const bool wants_max = inputs.x && inputs.x->reads_max;
    const Tensor max = wants_max ? back.ctx.zeros({1}) : Tensor{};
    rms_norm_backward_kernel({in.x, in.w, rstd, back.grad(), dx.dst, dw.dst, dx.beta, dw.beta, max, w_offset},
                             back.ctx);
    if (wants_max) inputs.x->max = max;
  }
};

void layer_norm_backward(const Backward& back, const NormInputs<SlotPtr>& inputs, const NormForBackward<Saved>& saved) {
  const auto [in, mean, rstd] = get_all(saved, back.ctx);
  const Sink dx = sink_like(back, inputs.x, in.x), dw = sink_like(back, inputs.w, in.w),
             db = sink_like(back, inputs.b, in.w);
  layer_norm_backward_kernel({in.x, in.w, mean, rstd, back.grad(), dx.dst, dw.dst, db.dst, dx.beta, dw.beta, db.beta},
                             back.ctx);
}

template <class Forward, class Rule>
Var norm(const Run& run, const char* op, const NormInputs<Var>& in, float eps, Forward forward, Rule rule) {
  check_norm(op, in.x.value, in.w.value, in.b.value);
  const Normed n = forward(run.ctx, values_of(in), eps);
  if (!run.records(in)) return {n.y, nullptr};
  NormForBackward<Saved> saved{{run.save(in.x), run.save(in.w), {}}, run.save(n.mean), run.save(n.rstd)};
  const Var out = run.record(op, n.y, slots_of(in), saved, rule);
  if (!run.saving.recompute) return out;
  saved.inputs.b = run.save(in.b);
  return recomputable(out, saved.inputs, [forward, eps](const ExecContext& ctx, const NormInputs<Tensor>& again) {
    return forward(ctx, again, eps).y;
  });
}

}  // namespace

Var rms_norm(Run& run, const Var& x, const Var& w, float eps, float w_offset) {
  return norm(run, "rms_norm", {x, w, {}}, eps, RmsForward{w_offset}, RmsBackward{w_offset});
}

Var layer_norm(Run& run, const Var& x, const Var& w, const Var& bias, float eps) {
  return norm(run, "layer_norm", {x, w, bias}, eps, layer_normed, layer_norm_backward);
}

}  // namespace ring
