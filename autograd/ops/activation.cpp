#include "kernels/activation.h"

#include "autograd/ops.h"
#include "autograd/ops/swiglu.h"
#include "kernels/fp8_producers.h"

namespace ring {
namespace {

Tensor activated(const ExecContext& ctx, const Tensor& x, Activation kind, float cap) {
  const Tensor y = ctx.empty(x.shape(), x.dtype());
  activate_kernel({.x = x, .y = y, .kind = kind, .cap = cap}, ctx);
  return y;
}

Tensor gated(const ExecContext& ctx, const Tensor& gate_up, Gate gate) {
  const Tensor y = ctx.empty({gate_up.dim(0), gate_up.dim(1) / 2}, gate_up.dtype());
  swiglu_kernel({.gate_up = gate_up, .y = y, .gate = gate}, ctx);
  return y;
}

// Returns the gradient of gate_up if the gate's activation is not silu.
DeferredGradient gated_gradient(const Tensor& gate_up, const Tensor& dy, Gate gate) {
  const auto compute = [=](const ExecContext& ctx, const Tensor& to) {
    swiglu_backward_kernel({.gate_up = gate_up, .dy = dy, .dgate_up = to, .gate = gate}, ctx);
  };
  return {gate_up.shape(), dy.dtype(), compute};
}

Saved keep(const Run& run, const Var& in) { return run.save(in); }

template <class T>
struct SigmoidGateInputs {
  T x, gate;
};

Tensor times_sigmoid(const ExecContext& ctx, const Tensor& x, const Tensor& gate) {
  const Tensor y = ctx.empty(x.shape(), x.dtype());
  sigmoid_gate_kernel({x, gate, y}, ctx);
  return y;
}

}  // namespace

DeferredGradient swiglu_gradient(const Tensor& gate_up, const Tensor& dy, const Fp8Matrix& fp8_gate_up) {
  RING_CHECK(gate_up.defined() != fp8_gate_up.defined(), "swiglu_gradient: expected gate_up or fp8_gate_up, got ",
             gate_up.defined() ? "both" : "neither");
  const auto compute = [gate_up, dy, fp8_gate_up](const ExecContext& ctx, const Tensor& to) {
    if (fp8_gate_up.defined()) dequantize_fp8_kernel({fp8_gate_up, to}, ctx);
    swiglu_backward_kernel({.gate_up = fp8_gate_up.defined() ? to : gate_up, .dy = dy, .dgate_up = to}, ctx);
  };
  const auto quantize = [gate_up, dy, fp8_gate_up](const ExecContext& ctx, const Fp8Matrix& out,
                                                   const Fp8Matrix& transposed, const Fp8Max& max) {
    swiglu_backward_fp8_kernel({gate_up, dy, out, transposed, max, fp8_gate_up}, ctx);
  };
  return {(fp8_gate_up.defined() ? fp8_gate_up.values : gate_up).shape(), dy.dtype(), compute, quantize};
}

Var activate(Run& run, const Var& x, Activation kind, float cap) {
  const auto forward = [=](const ExecContext& ctx, const Tensor& in) { return activated(ctx, in, kind, cap); };
  const auto rule = [kind, cap](const Backward& back, const SlotPtr& input, const Saved& saved_x) {
    const Tensor in = saved_x.get(back.ctx);
    const auto compute = [in, dy = back.grad(), kind, cap](const ExecContext& ctx, const Tensor& dx) {
      activate_backward_kernel({.x = in, .dy = dy, .dx = dx, .kind = kind, .cap = cap}, ctx);
    };
    back.accumulate(input, {in.shape(), in.dtype(), compute});
  };
  return run.op("activate", x, forward, rule, keep);
}

Var sigmoid_gate(Run& run, const Var& x, const Var& gate) {
  RING_CHECK(x.value.shape() == gate.value.shape(), "sigmoid_gate: x is ", describe(x.value), ", gate is ",
             describe(gate.value), ", expected the same shape");
  const auto forward = [](const ExecContext& ctx, const SigmoidGateInputs<Tensor>& in) {
    return times_sigmoid(ctx, in.x, in.gate);
  };
  const auto rule = [](const Backward& back, const SigmoidGateInputs<SlotPtr>& slots,
                       const SigmoidGateInputs<Saved>& saved) {
    const auto [in, by] = get_all(saved, back.ctx);
    const Tensor dy = back.grad();
    const auto dgate = [x = in, gate = by, dy](const ExecContext& ctx, const Tensor& to) {
      sigmoid_gate_backward_kernel({x, gate, dy, to}, ctx);
    };
    const auto dx = [gate = by, dy](const ExecContext& ctx, const Tensor& to) {
      sigmoid_gate_kernel({dy, gate, to}, ctx);
    };
    if (slots.gate) back.accumulate(slots.gate, {by.shape(), by.dtype(), dgate});
    if (slots.x) back.accumulate(slots.x, {in.shape(), in.dtype(), dx});
  };
  const auto keep_both = [](const Run& r, const SigmoidGateInputs<Var>& in) {
    return SigmoidGateInputs<Saved>{r.save(in.x), r.save(in.gate)};
  };
  return run.op("sigmoid_gate", SigmoidGateInputs<Var>{x, gate}, forward, rule, keep_both);
}

Var swiglu(Run& run, const Var& gate_up, Gate gate) {
  const Tensor& in = gate_up.value;
  RING_CHECK(in.shape().size() == 2 && in.dim(1) % 2 == 0, "swiglu: input ", describe(in), ", expected [N,2F]");
  const auto forward = [gate](const ExecContext& ctx, const Tensor& x) { return gated(ctx, x, gate); };
  const auto rule = [gate](const Backward& back, const SlotPtr& input, const Saved& saved_x) {
    const Tensor x = saved_x.get(back.ctx);
    back.accumulate(input, gate == Gate::silu ? swiglu_gradient(x, back.grad()) : gated_gradient(x, back.grad(), gate));
  };
  return run.op("swiglu", gate_up, forward, rule, keep);
}

}  // namespace ring
