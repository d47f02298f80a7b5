#include "autograd/ops/linear.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

template <class T>
struct Layers {
  LinearInputs<T> up, down;
};

// Hidden values before and after the activation.
template <class T>
struct Hidden {
  T before, after;
};

struct MlpForBackward {
  Saved x, w_up, w_down;
  Hidden<Saved> hidden;
};

Hidden<Tensor> up_and_activate(const ExecContext& ctx, const LinearInputs<Tensor>& in) {
  const Shape shape{in.x.dim(0), in.w.dim(0)};
  const Hidden<Tensor> h{ctx.empty(shape, in.x.dtype()), ctx.empty(shape, in.x.dtype())};
  matmul_kernel({.a = in.x, .b = in.w, .c = h.after, .transpose_b = true, .bias = in.b, .gelu_input = h.before}, ctx);
  return h;
}

Tensor down(const ExecContext& ctx, const LinearInputs<Tensor>& in) { return linear_forward(ctx, in); }

void mlp_backward(const Backward& back, const Layers<SlotPtr>& inputs, MlpForBackward& saved) {
  const ExecContext& ctx = back.ctx;
  const Tensor& dy = back.grad();
  const Tensor w_up = saved.w_up.get(ctx), w_down = saved.w_down.get(ctx);
  parameter_gradients(back, inputs.down, dy, w_down, saved.hidden.after);
  if (inputs.up.x || inputs.up.w || inputs.up.b) {
    // The activated values are not read any more: their memory is reused for the gradient.
    const Tensor dh = saved.hidden.after.take(ctx);
    matmul_kernel({.a = dy, .b = w_down, .c = dh, .gelu_gradient_at = saved.hidden.before.take(ctx)}, ctx);
    parameter_gradients(back, inputs.up, dh, w_up, saved.x);
    input_gradient(back, inputs.up, dh, w_up);
  }
  back.accumulate(inputs.down.residual, dy);
}

}  // namespace

Var mlp_gelu_tanh(Run& run, const Var& x, const Var& w1, const Var& b1, const Var& w2, const Var& b2,
                  const Var& residual) {
  check_linear("mlp_gelu_tanh", x, w1, b1);
  const Hidden<Tensor> hidden = up_and_activate(run.ctx, {x.value, w1.value, b1.value, {}});
  check_linear("mlp_gelu_tanh", {hidden.after, nullptr}, w2, b2);
  check_residual("mlp_gelu_tanh", residual, {x.value.dim(0), w2.value.dim(0)});
  const Tensor y = down(run.ctx, {hidden.after, w2.value, b2.value, residual.value});
  if (!run.records(x, w1, b1, w2, b2, residual)) return {y, nullptr};
  MlpForBackward saved{.x = run.save(x), .w_up = run.save(w1), .w_down = run.save(w2), .hidden = {}};
  saved.hidden = run.saving.recompute
                     ? save_to_recompute(LinearInputs<Saved>{saved.x, saved.w_up, run.save(b1), {}}, up_and_activate)
                     : Hidden<Saved>{run.save(hidden.before), run.save(hidden.after)};
  const Layers<SlotPtr> inputs{{x.slot, w1.slot, b1.slot, nullptr}, {nullptr, w2.slot, b2.slot, residual.slot}};
  const Var out = run.record("mlp", y, inputs, saved, mlp_backward);
  if (!run.saving.recompute) return out;
  return recomputable(out, LinearInputs<Saved>{saved.hidden.after, saved.w_down, run.save(b2), run.save(residual)},
                      down);
}

}  // namespace ring
