#include "autograd/ops.h"

namespace ring {
namespace {

// Backward rule that runs f again. Everything that `run` and f refer to outlives the step.
struct SegmentRule {
  static constexpr bool kKeepsNoTensor = true;
  Run* run;
  BlocksFn f;

  void operator()(const Backward& back, const SlotPtr& input, Saved& saved) const {
    Tape tape(back.final_pass);
    Run again = *run;
    again.tape = &tape;
    const Var x{saved.take(back.ctx), input ? std::make_shared<GradSlot>() : nullptr};
    const SlotPtr y = f(again, x).slot;  // null if f records only roots of their own (index_loss)
    tape.backward(y ? y : std::make_shared<GradSlot>(), back.grad(), back.ctx);
    if (x.slot) back.accumulate(input, x.slot->grad);
  }
};

}  // namespace

Var checkpoint_segment(Run& run, const Var& x, const BlocksFn& f) {
  if (!run.tape) return f(run, x);
  Run unrecorded = run;
  unrecorded.tape = nullptr;
  const Tensor y = f(unrecorded, x).value;
  return run.record("checkpoint_segment", y, x.slot, run.save(x), SegmentRule{&run, f});
}

}  // namespace ring
