#include "kernels/linear_attention/short_conv.h"

#include "autograd/linear_attention.h"
#include "autograd/ops/carried_state.h"

namespace ring {
namespace {

template <class T>
struct ConvInputs {
  T x, w, initial;
};

struct ConvSlots {
  ConvInputs<SlotPtr> inputs;
  SlotPtr final;
};

std::int64_t taps_of(const Tensor& x, const Tensor& w) { return w.numel() / x.dim(1); }

struct ConvForward {
  static constexpr bool kKeepsNoTensor = true;
  CallParts call;

  Tensor operator()(const ExecContext& ctx, const ConvInputs<Tensor>& in, const Tensor& final = {}) const {
    const Tensor y = ctx.empty(in.x.shape(), in.x.dtype());
    if (!call.shards)
      launch_with_documents(call.documents, ShortConv{in.x, in.w, y, in.initial, final, {}}, short_conv_kernel, ctx);
    for (const StatePart& p : call.parts) compute(p, in, y, {}, ctx);
    return y;
  }

  // Computes one StatePart of sharded sequences, from the inputs before it.
  static void compute(const StatePart& p, const ConvInputs<Tensor>& in, const Tensor& y, const Tensor& final,
                      const ExecContext& ctx) {
    short_conv_kernel({rows_of(in.x, p), in.w, rows_of(y, p), initial_of(in.initial, p), final, p.documents}, ctx);
  }
};

struct ConvRule {
  static constexpr bool kKeepsNoTensor = true;
  ConvForward forward;

  void operator()(const Backward& back, const ConvSlots& slots, const ConvInputs<Saved>& saved) const {
    const ConvInputs<Tensor> in = get_all(saved, back.ctx);
    const Sink dx = back.sink(slots.inputs.x, in.x.shape(), in.x.dtype()),
               dw = back.sink(slots.inputs.w, in.w.shape(), in.w.dtype());
    if (forward.call.shards) return compute_parts(in, back.grad(), dx, dw, back.ctx);
    const Sink di = in.initial.defined() ? back.sink(slots.inputs.initial, in.initial.shape(), DType::f32) : Sink{};
    launch_with_documents(forward.call.documents,
                          ShortConvBackward{.x = in.x,
                                            .w = in.w,
                                            .initial = in.initial,
                                            .dy = back.grad(),
                                            .dfinal = final_gradient(slots.final),
                                            .dx = dx.dst,
                                            .dw = dw.dst,
                                            .dinitial = di.dst,
                                            .beta_x = dx.beta,
                                            .beta_w = dw.beta,
                                            .beta_initial = di.beta},
                          short_conv_backward_kernel, back.ctx);
  }

 private:
  // Only the first K-1 rows of a part read its initial inputs, so the gradient of these inputs needs no other rows.
  void compute_parts(const ConvInputs<Tensor>& in, const Tensor& dy, const Sink& dx, Sink dw,
                     const ExecContext& ctx) const {
    const std::int64_t reach = taps_of(in.x, in.w) - 1;
    const Shape shape{1, reach, in.x.dim(1)};
    const auto arguments = [&](const StatePart& p) {
      ShortConvBackward a{.x = rows_of(in.x, p), .w = in.w, .initial = initial_of(in.initial, p), .dy = rows_of(dy, p)};
      a.documents = p.documents;
      if (p.starts) a.dinitial = ctx.empty(shape);
      return a;
    };
    const auto early = [&](std::size_t part) {
      StatePart p = forward.call.parts[part];
      p.count = static_cast<std::int32_t>(reach), p.documents = {{0, p.count}};
      const ShortConvBackward a = arguments(p);
      short_conv_backward_kernel(a, ctx);
      return a.dinitial;
    };
    const auto compute = [&](std::size_t part, const Tensor& dfinal) {
      const StatePart& p = forward.call.parts[part];
      ShortConvBackward a = arguments(p);
      a.dfinal = dfinal, a.dx = rows_of(dx.dst, p), a.beta_x = dx.beta, a.dw = dw.dst, a.beta_w = dw.beta;
      short_conv_backward_kernel(a, ctx);
      dw.beta = 1;  // the next part adds to the gradient of the weights
      return a.dinitial;
    };
    forward.call.chain->backward(
        {.kind = StatePass::Kind::conv_inputs, .shape = shape, .reach = reach, .compute = compute, .early = early},
        *forward.call.shards, ctx);
  }
};

// Computes all parts of sharded sequences. Stores the inputs before each part in in.initial. The inputs that follow
// from a part are its last K-1 rows, which are known before the part is computed.
Tensor compute_parts(const ConvForward& forward, const ConvInputs<Tensor>& in, const ExecContext& ctx) {
  const Tensor y = ctx.empty(in.x.shape(), in.x.dtype());
  const std::int64_t reach = taps_of(in.x, in.w) - 1;
  const Shape shape{1, reach, in.x.dim(1)};
  const auto early = [&](std::size_t part) {
    const StatePart& p = forward.call.parts[part];
    const Tensor x = in.x.narrow(0, p.first + p.count - reach, reach), final = ctx.empty(shape);
    short_conv_kernel({x, in.w, ctx.empty(x.shape(), x.dtype()), {}, final, {{0, static_cast<std::int32_t>(reach)}}},
                      ctx);
    return final;
  };
  const auto compute = [&](std::size_t part, const Tensor& passed) {
    const StatePart& p = forward.call.parts[part];
    if (p.starts) copy(initial_of(in.initial, p), passed.view(shape), ctx.stream);
    const Tensor final = p.continues && p.count < reach ? ctx.empty(shape) : Tensor{};
    ConvForward::compute(p, in, y, final, ctx);
    return final;
  };
  forward.call.chain->forward(
      {.kind = StatePass::Kind::conv_inputs, .shape = shape, .reach = reach, .compute = compute, .early = early},
      *forward.call.shards, ctx);
  return y;
}

}  // namespace

Var short_conv(Run& run, const Var& x, const Var& w, const Sequences& seqs, const CarriedState& state,
               std::int64_t layer) {
  RING_CHECK(x.value.shape().size() == 2 && w.value.numel() > 0 && w.value.numel() % x.value.dim(1) == 0,
             "short_conv: x is ", describe(x.value), ", w is ", describe(w.value), ", expected [N,C] and [C K]");
  const ConvForward forward{{"short_conv", run, seqs, x.value, state, layer}};
  const Shape shape{1, taps_of(x.value, w.value) - 1, x.value.dim(1)};
  const bool sharded = forward.call.shards != nullptr;
  const ConvInputs<Var> in{x, w, sharded ? Var{forward.call.initial_states(shape, run.ctx), nullptr} : state.initial};
  const Tensor final = final_memory(state, {std::ssize(forward.call.documents.now()), shape[1], shape[2]}, run.ctx);
  const Tensor y = sharded ? compute_parts(forward, values_of(in), run.ctx) : forward(run.ctx, values_of(in), final);
  if (state.final) *state.final = {final, nullptr};
  if (!run.records(in)) return {y, nullptr};
  const ConvInputs<Saved> saved{run.save(x), run.save(w), run.save(in.initial)};
  const SlotPtr final_slot = final_slot_of(state);
  const Var out = run.record("short_conv", y, ConvSlots{slots_of(in), final_slot}, saved, ConvRule{forward});
  if (state.final) *state.final = record_final(run, out, final, final_slot);
  if (!run.saving.recompute) return out;
  return recomputable(out, saved, forward);
}

}  // namespace ring
