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

// Returns the documents of a call. Throws Error unless this device has all tokens of them in one call.
inline CallSpans whole_documents(const char* op, const Sequences& seqs, const Tensor& x) {
  RING_CHECK(!seqs.shards, op,
             ": the sequences are sharded among ranks or computed in chunks, which linear attention "
             "does not support");
  RING_CHECK(x.dim(0) == seqs.tokens(), op, ": x has ", x.dim(0), " tokens, but the sequences have ", seqs.tokens());
  return CallSpans(seqs);
}

}  // namespace ring
