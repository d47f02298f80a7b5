#pragma once
// Gives an op its final state as a second output. A step on the tape has only one output, so a second step outputs the
// final state. In the backward, that step puts the state's gradient into a slot, which the op's backward rule reads.

#include "autograd/linear_attention.h"
#include "autograd/ops/current_spans.h"
#include "core/tensor.h"

namespace ring {

// Returns a slot that passes the final state's gradient to the op's backward rule; null if no final state is wanted.
inline SlotPtr final_slot_of(const CarriedState& s) { return s.final ? std::make_shared<GradSlot>() : nullptr; }

// Returns the gradient of the final state, for the op's backward rule; undefined if there is none.
inline Tensor final_gradient(const SlotPtr& slot) { return slot && slot->written ? slot->grad : Tensor{}; }

// Returns a tensor for the final state; undefined if no final state is wanted.
inline Tensor final_memory(const CarriedState& s, const Shape& shape, const ExecContext& ctx) {
  if (!s.final) return {};
  return s.memory.defined() ? s.memory.view(shape) : ctx.empty(shape);
}

template <class T>
struct OpWithState {
  T out, final;
};

// Records the final state of the op that returned `out`. Call after recording the op, with the slot that its backward
// rule reads. If only the final state has a gradient, the op's output gets the gradient 0, so that its rule runs.
inline Var record_final(const Run& run, const Var& out, const Tensor& final, const SlotPtr& slot) {
  const auto rule = [shape = out.value.shape(), type = out.value.dtype()](const Backward& back,
                                                                          const OpWithState<SlotPtr>& inputs) {
    back.accumulate(inputs.final, back.grad());
    if (!inputs.out->written) fill_zero(back.sink(inputs.out, shape, type).dst, back.ctx.stream);
  };
  return run.record("final_state", final, OpWithState<SlotPtr>{out.slot, slot}, rule);
}

// The documents of a call: whole ones or, if the sequences are sharded among ranks or computed in chunks, parts whose
// states a chain passes on.
struct CallParts {
  CallSpans documents;                          // used only if shards is null
  std::shared_ptr<const ContextShards> shards;  // null if documents are whole
  StateChain* chain = nullptr;
  std::vector<StatePart> parts;

  // layer: for an exchange that stores something for each layer. Throws Error if `x` does not have the sequences' rows.
  CallParts(const char* op, const Run& run, const Sequences& seqs, const Tensor& x, const CarriedState& state,
            std::int64_t layer)
      : shards(seqs.shards) {
    RING_CHECK(x.dim(0) == seqs.tokens(), op, ": x has ", x.dim(0), " tokens, but the sequences have ", seqs.tokens());
    if (!shards) {
      documents = CallSpans(seqs);
      return;
    }
    RING_CHECK(run.layout.cp, op, ": the sequences are sharded, but the run has no exchange (RunLayout::cp)");
    RING_CHECK(!state.final && !state.initial.value.defined(), op, ": sharded sequences carry no states from call to ",
               "call");
    chain = &run.layout.cp->of_layer(layer).states();
    parts = chain->parts(*shards);
  }

  // Allocates the states before the parts, one for each run of rows. shape: that of a document's state, [1,...].
  Tensor initial_states(Shape shape, const ExecContext& ctx) const {
    shape[0] = std::ssize(shards->rows_by_rank[static_cast<std::size_t>(shards->rank)]);
    return ctx.empty(shape);
  }
};

// Return the rows of a part, and the state before it, of an op's tensors; undefined if the tensor is, or if the part
// starts from no state.
inline Tensor rows_of(const Tensor& t, const StatePart& p) {
  return t.defined() ? t.narrow(0, p.first, p.count) : Tensor{};
}
inline Tensor initial_of(const Tensor& initial, const StatePart& p) {
  return p.starts ? initial.narrow(0, p.run, 1) : Tensor{};
}

}  // namespace ring
