#include "autograd/ops.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

// Between the layers, before and after the activation.
template <class T>
struct Hidden {
  T before, after;
};

template <class T>
struct FirstLayer {
  T x, w, b;
};

template <class T>
struct SecondLayer {
  T x, w, b, residual;
};

struct Inputs {
  SlotPtr x, w1, b1, w2, b2, residual;
};

struct ForBackward {
  Saved x, w1, w2;
  Hidden<Saved> hidden;
};

Hidden<Tensor> first_layer(const ExecContext& ctx, const FirstLayer<Tensor>& in) {
  const Shape shape{in.x.dim(0), in.w.dim(0)};
  const Hidden<Tensor> h{ctx.empty(shape, in.x.dtype()), ctx.empty(shape, in.x.dtype())};
  matmul_kernel({.a = in.x, .b = in.w, .c = h.after, .transpose_b = true, .bias = in.b, .gelu_input = h.before}, ctx);
  return h;
}

Tensor second_layer(const ExecContext& ctx, const SecondLayer<Tensor>& in) {
  const Tensor y = ctx.empty({in.x.dim(0), in.w.dim(0)}, in.x.dtype());
  matmul_kernel({.a = in.x, .b = in.w, .c = y, .transpose_b = true, .bias = in.b, .residual = in.residual}, ctx);
  return y;
}

// dw = dy^T x and db = column sums of dy. x is made only if the weight needs a gradient.
void parameter_gradients(const Backward& back, const SlotPtr& weight, const SlotPtr& bias, const Tensor& dy,
                         const Tensor& w, const Saved& x) {
  if (weight) {
    const Sink s = back.sink(weight, w.shape(), w.dtype());
    matmul_kernel({.a = dy, .b = x.get(back.ctx), .c = s.dst, .transpose_a = true, .beta = s.beta}, back.ctx);
  }
  if (bias) {
    const Sink s = back.sink(bias, {w.dim(0)}, w.dtype());
    column_sum_kernel({dy, s.dst, s.beta}, back.ctx);
  }
}

void mlp_backward(const Backward& back, const Inputs& inputs, ForBackward& saved) {
  const ExecContext& ctx = back.ctx;
  const Tensor& dy = back.grad();
  const Tensor w1 = saved.w1.get(ctx), w2 = saved.w2.get(ctx);
  parameter_gradients(back, inputs.w2, inputs.b2, dy, w2, saved.hidden.after);
  if (inputs.x || inputs.w1 || inputs.b1) {
    // Nobody reads the activated values any more: their bytes serve for the gradient.
    const Tensor dh = saved.hidden.after.take(ctx);
    matmul_kernel({.a = dy, .b = w2, .c = dh, .gelu_gradient_at = saved.hidden.before.take(ctx)}, ctx);
    parameter_gradients(back, inputs.w1, inputs.b1, dh, w1, saved.x);
    if (inputs.x) {
      const Sink s = back.sink(inputs.x, {dh.dim(0), w1.dim(1)}, dy.dtype());
      matmul_kernel({.a = dh, .b = w1, .c = s.dst, .beta = s.beta}, ctx);
    }
  }
  back.accumulate(inputs.residual, dy);
}

void check_layer(const char* name, const Shape& in, const Tensor& w, const Tensor& b) {
  const bool fits = in.size() == 2 && w.shape().size() == 2 && in[1] == w.dim(1);
  RING_CHECK(fits, "mlp_gelu_tanh: input ", in, " of the ", name, " layer and weight ", describe(w),
             ": the last dims must agree");
  RING_CHECK(!b.defined() || b.shape() == Shape{w.dim(0)}, "mlp_gelu_tanh: bias ", describe(b), " for weight ",
             describe(w));
}

}  // namespace

Var mlp_gelu_tanh(Run& run, const Var& x, const Var& w1, const Var& b1, const Var& w2, const Var& b2,
                  const Var& residual) {
  check_layer("first", x.value.shape(), w1.value, b1.value);
  check_layer("second", {x.value.dim(0), w1.value.dim(0)}, w2.value, b2.value);
  const Shape out_shape{x.value.dim(0), w2.value.dim(0)};
  RING_CHECK(!residual.value.defined() || residual.value.shape() == out_shape, "mlp_gelu_tanh: residual ",
             describe(residual.value), " for an output of ", out_shape);
  const Hidden<Tensor> hidden = first_layer(run.ctx, {x.value, w1.value, b1.value});
  const Tensor y = second_layer(run.ctx, {hidden.after, w2.value, b2.value, residual.value});
  if (!run.records(x, w1, b1, w2, b2, residual)) return {y, nullptr};
  ForBackward saved{.x = run.save(x), .w1 = run.save(w1), .w2 = run.save(w2), .hidden = {}};
  saved.hidden = run.recompute ? save_to_recompute(FirstLayer<Saved>{saved.x, saved.w1, run.save(b1)}, first_layer)
                               : Hidden<Saved>{run.save(hidden.before), run.save(hidden.after)};
  const Inputs inputs{x.slot, w1.slot, b1.slot, w2.slot, b2.slot, residual.slot};
  const Var out = run.record("mlp", y, inputs, saved, mlp_backward);
  if (!run.recompute) return out;
  return recomputable(out, SecondLayer<Saved>{saved.hidden.after, saved.w2, run.save(b2), run.save(residual)},
                      second_layer);
}

}  // namespace ring
