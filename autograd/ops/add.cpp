#include "autograd/ops.h"
#include "kernels/elementwise.h"

namespace ring {

Var add(Run& run, const Var& a, const Var& b) {
  RING_CHECK(a.value.shape() == b.value.shape(), "add: ", describe(a.value), " and ", describe(b.value),
             ": shapes differ");
  const Tensor y = run.ctx.empty(a.value.shape());
  axpby_kernel({.x = a.value, .y = b.value, .out = y, .alpha = 1, .beta = 1}, run.ctx);
  if (!run.tape) return {y, nullptr};
  return run.tape->record("add", y, {a.slot, b.slot}, [](Backward& back) {
    for (int i : {0, 1})
      if (back.wants(i)) back.give(i, back.grad());
  });
}

}  // namespace ring
