#include "autograd/ops.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

// The two layers' parameters.
struct Weights {
  Tensor w1, b1, w2, b2;
};

// Between the layers.
struct Hidden {
  Tensor before, after;  // the activation
};

Hidden first_layer(const ExecContext& ctx, const Tensor& x, const Weights& w) {
  const Shape shape{x.dim(0), w.w1.dim(0)};
  const Hidden h{ctx.empty(shape, x.dtype()), ctx.empty(shape, x.dtype())};
  matmul_kernel({.a = x, .b = w.w1, .c = h.after, .transpose_b = true, .bias = w.b1, .gelu_input = h.before}, ctx);
  return h;
}

Tensors hidden_again(const ExecContext& ctx, const Tensors& from) {
  const Hidden h = first_layer(ctx, from[0], {.w1 = from[1], .b1 = from[2]});
  return {h.before, h.after};
}

Tensor second_layer(const ExecContext& ctx, const Tensor& h, const Weights& w, const Tensor& residual) {
  const Tensor y = ctx.empty({h.dim(0), w.w2.dim(0)}, h.dtype());
  matmul_kernel({.a = h, .b = w.w2, .c = y, .transpose_b = true, .bias = w.b2, .residual = residual}, ctx);
  return y;
}

// In the order of the backward rule's list: what was saved.
enum { kSavedX, kSavedW1, kSavedW2, kBefore, kAfter };

// dw = dy^T x and db = column sums of dy, for the inputs `weight` and `bias`; x() is called where it is needed.
template <class X>
void parameter_gradients(Backward& back, int weight, int bias, const Tensor& dy, const Tensor& w, const X& x) {
  if (back.needs_grad(weight)) {
    const Sink s = back.sink(weight, w.shape(), w.dtype());
    matmul_kernel({.a = dy, .b = x(), .c = s.dst, .transpose_a = true, .beta = s.beta}, back.ctx);
  }
  if (back.needs_grad(bias)) {
    const Sink s = back.sink(bias, {w.dim(0)}, w.dtype());
    column_sum_kernel({dy, s.dst, s.beta}, back.ctx);
  }
}

enum In { kX, kW1, kB1, kW2, kB2, kResidual };

void mlp_backward(Backward& back) {
  const Tensor& dy = back.grad();
  const Tensor w1 = back.saved(kSavedW1), w2 = back.saved(kSavedW2);
  parameter_gradients(back, kW2, kB2, dy, w2, [&] { return back.saved(kAfter); });
  if (back.needs_grad(kX) || back.needs_grad(kW1) || back.needs_grad(kB1)) {
    // Nobody reads the activated values any more: their bytes serve for the gradient.
    const Tensor dh = back.take(kAfter);
    matmul_kernel({.a = dy, .b = w2, .c = dh, .gelu_gradient_at = back.take(kBefore)}, back.ctx);
    parameter_gradients(back, kW1, kB1, dh, w1, [&] { return back.saved(kSavedX); });
    if (back.needs_grad(kX)) {
      const Sink s = back.sink(kX, {dh.dim(0), w1.dim(1)}, dy.dtype());
      matmul_kernel({.a = dh, .b = w1, .c = s.dst, .beta = s.beta}, back.ctx);
    }
  }
  if (back.needs_grad(kResidual)) back.accumulate(kResidual, dy);
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
  const Weights w{w1.value, b1.value, w2.value, b2.value};
  check_layer("first", x.value.shape(), w.w1, w.b1);
  check_layer("second", {x.value.dim(0), w.w1.dim(0)}, w.w2, w.b2);
  const Shape out_shape{x.value.dim(0), w.w2.dim(0)};
  RING_CHECK(!residual.value.defined() || residual.value.shape() == out_shape, "mlp_gelu_tanh: residual ",
             describe(residual.value), " for an output of ", out_shape);
  const Hidden hidden = first_layer(run.ctx, x.value, w);
  const Tensor y = second_layer(run.ctx, hidden.after, w, residual.value);
  if (!run.records(x, w1, b1, w2, b2, residual)) return {y, nullptr};
  const Saved in = run.save(x), first = run.save(w1), second = run.save(w2);
  const std::vector<SlotPtr> inputs{x.slot, w1.slot, b1.slot, w2.slot, b2.slot, residual.slot};
  if (!run.recompute)
    return run.record("mlp", y, inputs, {in, first, second, run.save(hidden.before), run.save(hidden.after)},
                      mlp_backward);
  const auto again = std::make_shared<Recipe>(Recipe{{in, first, run.save(b1)}, hidden_again});
  const Saved before(again, 0), after(again, 1);
  const Var out = run.record("mlp", y, inputs, {in, first, second, before, after}, mlp_backward);
  return recomputable(out, {after, second, run.save(b2), run.save(residual)},
                      [](const ExecContext& ctx, const Tensors& from) {
                        return second_layer(ctx, from[0], {.w2 = from[1], .b2 = from[2]}, from[3]);
                      });
}

}  // namespace ring
