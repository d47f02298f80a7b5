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
  CallParts call;

  Shape state_shape(std::int64_t documents) const {
    return {documents, rule.value_heads, rule.key_width, rule.value_width};
  }
  Tensor output(const ExecContext& ctx, const Tensor& qkv) const {
    return ctx.empty({qkv.dim(0), rule.value_heads, rule.value_width}, qkv.dtype());
  }

  Tensor operator()(const ExecContext& ctx, const DeltaInputs<Tensor>& in, const Tensor& final = {},
                    const Tensor& states = {}) const {
    const Tensor out = output(ctx, in.qkv);
    if (!call.shards) launch_with_documents(call.documents, arguments(in, out, final, states), gated_delta_kernel, ctx);
    for (const StatePart& p : call.parts) compute(p, in, out, {}, {}, ctx);
    return out;
  }

  // Computes one StatePart of sharded sequences, from the state before it.
  void compute(const StatePart& p, const DeltaInputs<Tensor>& in, const Tensor& out, const Tensor& final,
               const Tensor& states, const ExecContext& ctx) const {
    GatedDelta a = arguments(of_part(in, p), rows_of(out, p), final, states_of(states, p));
    a.documents = p.documents;
    gated_delta_kernel(a, ctx);
  }

  static DeltaInputs<Tensor> of_part(const DeltaInputs<Tensor>& in, const StatePart& p) {
    return {rows_of(in.qkv, p), rows_of(in.gates, p), initial_of(in.initial, p)};
  }
  // Returns the slots for saved states that a part uses (state_slots()). Parts begin at any row, so two parts may share
  // a slot: the kernel saves no state of the first kStateTokens rows of a call, so the second one does not use it.
  static Tensor states_of(const Tensor& states, const StatePart& p) {
    return states.defined() ? states.narrow(0, p.first / kStateTokens, state_slots(p.count)) : Tensor{};
  }

 private:
  GatedDelta arguments(const DeltaInputs<Tensor>& in, const Tensor& out, const Tensor& final,
                       const Tensor& states) const {
    const auto [q, k, v] = heads_of(in.qkv, rule);
    const auto [decay, beta] = columns_of(in.gates);
    return {.q = q,
            .k = k,
            .v = v,
            .decay = decay,
            .beta = beta,
            .out = out,
            .initial = in.initial,
            .final = final,
            .states = states,
            .documents = {},
            .scale = rule.scale};
  }
};

struct DeltaRule {
  static constexpr bool kKeepsNoTensor = true;
  DeltaForward forward;

  void operator()(const Backward& back, const DeltaSlots& slots, const DeltaForBackward<Saved>& saved) const {
    const auto [in, states] = get_all(saved, back.ctx);
    const CallParts& call = forward.call;
    const Sink dqkv = back.sink(slots.inputs.qkv, in.qkv.shape(), in.qkv.dtype()),
               dgates = back.sink(slots.inputs.gates, in.gates.shape(), DType::f32);
    const Tensor dout = back.grad().view({in.qkv.dim(0), forward.rule.value_heads, forward.rule.value_width});
    if (!call.shards) {
      const Sink di = in.initial.defined() ? back.sink(slots.inputs.initial, in.initial.shape(), DType::f32) : Sink{};
      GatedDeltaBackward a = arguments(in, states, dout, dqkv, dgates);
      a.dfinal = final_gradient(slots.final), a.dinitial = di.dst, a.beta_initial = di.beta;
      return launch_with_documents(call.documents, a, gated_delta_backward_kernel, back.ctx);
    }
    const Shape shape = forward.state_shape(1);
    const auto compute = [&](std::size_t part, const Tensor& dfinal) {
      const StatePart& p = call.parts[part];
      GatedDeltaBackward a =
          arguments(DeltaForward::of_part(in, p), DeltaForward::states_of(states, p), rows_of(dout, p),
                    {rows_of(dqkv.dst, p), dqkv.beta}, {rows_of(dgates.dst, p), dgates.beta});
      a.dfinal = dfinal, a.documents = p.documents;
      if (p.starts) a.dinitial = back.ctx.empty(shape);
      gated_delta_backward_kernel(a, back.ctx);
      return a.dinitial;
    };
    call.chain->backward({.shape = shape, .compute = compute}, *call.shards, back.ctx);
  }

 private:
  GatedDeltaBackward arguments(const DeltaInputs<Tensor>& in, const Tensor& states, const Tensor& dout,
                               const Sink& dqkv, const Sink& dgates) const {
    const auto [q, k, v] = heads_of(in.qkv, forward.rule);
    const auto [decay, beta] = columns_of(in.gates);
    const auto [dq, dk, dv] = heads_of(dqkv.dst, forward.rule);
    const auto [ddecay, dbeta] = columns_of(dgates.dst);
    return {.q = q,
            .k = k,
            .v = v,
            .decay = decay,
            .beta = beta,
            .initial = in.initial,
            .states = states,
            .dout = dout,
            .dfinal = {},
            .dq = dq,
            .dk = dk,
            .dv = dv,
            .ddecay = ddecay,
            .dbeta = dbeta,
            .dinitial = {},
            .beta_qkv = dqkv.beta,
            .beta_gates = dgates.beta,
            .documents = {},
            .scale = forward.rule.scale};
  }
};

// Computes all parts of sharded sequences, in the order in which their states arrive. Stores the state before each part
// in in.initial.
Tensor compute_parts(const DeltaForward& forward, const DeltaInputs<Tensor>& in, const Tensor& states,
                     const ExecContext& ctx) {
  const Tensor out = forward.output(ctx, in.qkv);
  const Shape shape = forward.state_shape(1);
  const auto compute = [&](std::size_t part, const Tensor& passed) {
    const StatePart& p = forward.call.parts[part];
    if (p.starts) copy(initial_of(in.initial, p), passed.view(shape), ctx.stream);
    const Tensor final = p.continues ? ctx.empty(shape) : Tensor{};
    forward.compute(p, in, out, final, states, ctx);
    return final;
  };
  forward.call.chain->forward({.shape = shape, .compute = compute}, *forward.call.shards, ctx);
  return out;
}

}  // namespace

Var gated_delta(Run& run, const Var& qkv, const Var& gates, const Sequences& seqs, const GatedDeltaRule& rule,
                const CarriedState& state) {
  const std::int64_t columns = 2 * rule.key_heads * rule.key_width + rule.value_heads * rule.value_width;
  RING_CHECK(qkv.value.shape().size() == 2 && qkv.value.dim(1) == columns &&
                 gates.value.shape() == (Shape{qkv.value.dim(0), 2 * rule.value_heads}),
             "gated_delta: qkv is ", describe(qkv.value), ", gates are ", describe(gates.value), ", but 2 x ",
             rule.key_heads, " key heads of ", rule.key_width, " and ", rule.value_heads, " value heads of ",
             rule.value_width, " make ", columns, " columns");
  const DeltaForward forward{rule, {"gated_delta", run, seqs, qkv.value, state, rule.layer}};
  const bool sharded = forward.call.shards != nullptr;
  const DeltaInputs<Var> in{
      qkv, gates, sharded ? Var{forward.call.initial_states(forward.state_shape(1), run.ctx), nullptr} : state.initial};
  const bool records = run.records(in);
  const Shape slots = forward.state_shape(state_slots(qkv.value.dim(0)) + (sharded ? 1 : 0));
  const Tensor states = records ? run.ctx.empty(slots) : Tensor{};
  const Tensor final = final_memory(state, forward.state_shape(std::ssize(forward.call.documents.now())), run.ctx);
  const Tensor y =
      sharded ? compute_parts(forward, values_of(in), states, run.ctx) : forward(run.ctx, values_of(in), final, states);
  if (state.final) *state.final = {final, nullptr};
  if (!records) return {y, nullptr};
  const DeltaForBackward<Saved> saved{{run.save(qkv), run.save(gates), run.save(in.initial)}, run.save(states)};
  const SlotPtr final_slot = final_slot_of(state);
  const Var out = run.record("gated_delta", y, DeltaSlots{slots_of(in), final_slot}, saved, DeltaRule{forward});
  if (state.final) *state.final = record_final(run, out, final, final_slot);
  if (!run.saving.recompute_attention) return out;
  return recomputable(out, saved.inputs, forward);
}

}  // namespace ring
