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

struct ConvForward {
  static constexpr bool kKeepsNoTensor = true;
  CallSpans documents;

  Tensor operator()(const ExecContext& ctx, const ConvInputs<Tensor>& in, const Tensor& final = {}) const {
    const Tensor y = ctx.empty(in.x.shape(), in.x.dtype());
    launch_with_documents(documents, ShortConv{in.x, in.w, y, in.initial, final, {}}, short_conv_kernel, ctx);
    return y;
  }
};

struct ConvRule {
  static constexpr bool kKeepsNoTensor = true;
  CallSpans documents;

  void operator()(const Backward& back, const ConvSlots& slots, const ConvInputs<Saved>& saved) const {
    const ConvInputs<Tensor> in = get_all(saved, back.ctx);
    const Sink dx = back.sink(slots.inputs.x, in.x.shape(), in.x.dtype()),
               dw = back.sink(slots.inputs.w, in.w.shape(), in.w.dtype());
    const Sink di = in.initial.defined() ? back.sink(slots.inputs.initial, in.initial.shape(), DType::f32) : Sink{};
    launch_with_documents(documents,
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
};

}  // namespace

Var short_conv(Run& run, const Var& x, const Var& w, const Sequences& seqs, const CarriedState& state) {
  const ConvInputs<Var> in{x, w, state.initial};
  RING_CHECK(x.value.shape().size() == 2 && w.value.numel() > 0 && w.value.numel() % x.value.dim(1) == 0,
             "short_conv: x is ", describe(x.value), ", w is ", describe(w.value), ", expected [N,C] and [C K]");
  const ConvForward forward{whole_documents("short_conv", seqs, x.value)};
  const std::int64_t channels = x.value.dim(1), taps = w.value.numel() / channels;
  const Tensor final = final_memory(state, {std::ssize(forward.documents.now()), taps - 1, channels}, run.ctx);
  const Tensor y = forward(run.ctx, values_of(in), final);
  if (state.final) *state.final = {final, nullptr};
  if (!run.records(in)) return {y, nullptr};
  const ConvInputs<Saved> saved{run.save(x), run.save(w), run.save(state.initial)};
  const SlotPtr final_slot = final_slot_of(state);
  const Var out = run.record("short_conv", y, ConvSlots{slots_of(in), final_slot}, saved, ConvRule{forward.documents});
  if (state.final) *state.final = record_final(run, out, final, final_slot);
  if (!run.saving.recompute) return out;
  return recomputable(out, saved, forward);
}

}  // namespace ring
