#include "kernels/linear_attention/gated_delta.h"

#include "autograd/linear_attention.h"
#include "autograd/ops/carried_state.h"

namespace ring {
namespace {

template <class T>
struct GateInputs {
  T ab, log_decay, dt_bias;
};

}  // namespace

Var delta_gates(Run& run, const Var& ab, const Var& log_decay, const Var& dt_bias, float max_beta) {
  const auto forward = [max_beta](const ExecContext& ctx, const GateInputs<Tensor>& in) {
    const Tensor gates = ctx.empty(in.ab.shape());
    delta_gates_kernel({in.ab, in.log_decay, in.dt_bias, gates, max_beta}, ctx);
    return gates;
  };
  const auto rule = [max_beta](const Backward& back, const GateInputs<SlotPtr>& slots, const GateInputs<Saved>& saved) {
    const auto [ab, log_decay, dt_bias] = get_all(saved, back.ctx);
    const auto sink = [&](const SlotPtr& slot, const Tensor& like) {
      return back.sink(slot, like.shape(), like.dtype());
    };
    const Sink dab = sink(slots.ab, ab), decay = sink(slots.log_decay, log_decay), bias = sink(slots.dt_bias, dt_bias);
    delta_gates_backward_kernel(
        {ab, log_decay, dt_bias, back.grad(), dab.dst, decay.dst, bias.dst, dab.beta, decay.beta, bias.beta, max_beta},
        back.ctx);
  };
  const auto keep = [](const Run& r, const GateInputs<Var>& in) {
    return GateInputs<Saved>{r.save(in.ab), r.save(in.log_decay), r.save(in.dt_bias)};
  };
  return run.op("delta_gates", GateInputs<Var>{ab, log_decay, dt_bias}, forward, rule, keep);
}

namespace {

template <class T>
struct DeltaInputs {
  T qkv, gates, initial;
};

template <class T>
struct DeltaForBackward {
  DeltaInputs<T> inputs;
  T states;
};

struct DeltaSlots {
  DeltaInputs<SlotPtr> inputs;
  SlotPtr final;
};

// Queries, keys and values: views [N,H,D] of the columns of qkv.
struct DeltaHeads {
  Tensor q, k, v;
};
DeltaHeads heads_of(const Tensor& qkv, const GatedDeltaRule& r) {
  if (!qkv.defined()) return {};
  const std::int64_t keys = r.key_heads * r.key_width, values = r.value_heads * r.value_width;
  const auto part = [&](std::int64_t first, std::int64_t columns, std::int64_t width) {
    return qkv.narrow(1, first, columns).split_dim(1, width);
  };
  return {part(0, keys, r.key_width), part(keys, keys, r.key_width), part(2 * keys, values, r.value_width)};
}

// The logarithms of decays (g), and beta: views [N,H] of the columns of gates.
struct GateColumns {
  Tensor decay, beta;
};
GateColumns columns_of(const Tensor& gates) {
  if (!gates.defined()) return {};
  const std::int64_t heads = gates.dim(1) / 2;
  return {gates.narrow(1, 0, heads), gates.narrow(1, heads, heads)};
}

struct DeltaForward {
  static constexpr bool kKeepsNoTensor = true;
  GatedDeltaRule rule;
  CallSpans documents;

  Shape state_shape() const {
    return {std::ssize(documents.now()), rule.value_heads, rule.key_width, rule.value_width};
  }

  Tensor operator()(const ExecContext& ctx, const DeltaInputs<Tensor>& in, const Tensor& final = {},
                    const Tensor& states = {}) const {
    const auto [q, k, v] = heads_of(in.qkv, rule);
    const auto [decay, beta] = columns_of(in.gates);
    const Tensor out = ctx.empty({in.qkv.dim(0), rule.value_heads, rule.value_width}, in.qkv.dtype());
    launch_with_documents(documents,
                          GatedDelta{.q = q,
                                     .k = k,
                                     .v = v,
                                     .decay = decay,
                                     .beta = beta,
                                     .out = out,
                                     .initial = in.initial,
                                     .final = final,
                                     .states = states,
                                     .scale = rule.scale},
                          gated_delta_kernel, ctx);
    return out;
  }
};

struct DeltaRule {
  static constexpr bool kKeepsNoTensor = true;
  DeltaForward forward;

  void operator()(const Backward& back, const DeltaSlots& slots, const DeltaForBackward<Saved>& saved) const {
    const auto [in, states] = get_all(saved, back.ctx);
    const GatedDeltaRule& r = forward.rule;
    const Sink dqkv = back.sink(slots.inputs.qkv, in.qkv.shape(), in.qkv.dtype()),
               dgates = back.sink(slots.inputs.gates, in.gates.shape(), DType::f32);
    const Sink di = in.initial.defined() ? back.sink(slots.inputs.initial, in.initial.shape(), DType::f32) : Sink{};
    const auto [q, k, v] = heads_of(in.qkv, r);
    const auto [decay, beta] = columns_of(in.gates);
    const auto [dq, dk, dv] = heads_of(dqkv.dst, r);
    const auto [ddecay, dbeta] = columns_of(dgates.dst);
    launch_with_documents(forward.documents,
                          GatedDeltaBackward{.q = q,
                                             .k = k,
                                             .v = v,
                                             .decay = decay,
                                             .beta = beta,
                                             .initial = in.initial,
                                             .states = states,
                                             .dout = back.grad().view({in.qkv.dim(0), r.value_heads, r.value_width}),
                                             .dfinal = final_gradient(slots.final),
                                             .dq = dq,
                                             .dk = dk,
                                             .dv = dv,
                                             .ddecay = ddecay,
                                             .dbeta = dbeta,
                                             .dinitial = di.dst,
                                             .beta_qkv = dqkv.beta,
                                             .beta_gates = dgates.beta,
                                             .beta_initial = di.beta,
                                             .scale = r.scale},
                          gated_delta_backward_kernel, back.ctx);
  }
};

}  // namespace

Var gated_delta(Run& run, const Var& qkv, const Var& gates, const Sequences& seqs, const GatedDeltaRule& rule,
                const CarriedState& state) {
  const DeltaInputs<Var> in{qkv, gates, state.initial};
  const std::int64_t columns = 2 * rule.key_heads * rule.key_width + rule.value_heads * rule.value_width;
  RING_CHECK(qkv.value.shape().size() == 2 && qkv.value.dim(1) == columns &&
                 gates.value.shape() == (Shape{qkv.value.dim(0), 2 * rule.value_heads}),
             "gated_delta: qkv is ", describe(qkv.value), ", gates are ", describe(gates.value), ", but 2 x ",
             rule.key_heads, " key heads of ", rule.key_width, " and ", rule.value_heads, " value heads of ",
             rule.value_width, " make ", columns, " columns");
  const DeltaForward forward{rule, whole_documents("gated_delta", seqs, qkv.value)};
  const bool records = run.records(in);
  const Tensor final = final_memory(state, forward.state_shape(), run.ctx);
  const Shape slots{state_slots(qkv.value.dim(0)), rule.value_heads, rule.key_width, rule.value_width};
  const Tensor states = records ? run.ctx.empty(slots) : Tensor{};
  const Tensor y = forward(run.ctx, values_of(in), final, states);
  if (state.final) *state.final = {final, nullptr};
  if (!records) return {y, nullptr};
  const DeltaForBackward<Saved> saved{{run.save(qkv), run.save(gates), run.save(state.initial)}, run.save(states)};
  const SlotPtr final_slot = final_slot_of(state);
  const Var out = run.record("gated_delta", y, DeltaSlots{slots_of(in), final_slot}, saved, DeltaRule{forward});
  if (state.final) *state.final = record_final(run, out, final, final_slot);
  if (!run.saving.recompute_attention) return out;
  return recomputable(out, saved.inputs, forward);
}

}  // namespace ring
