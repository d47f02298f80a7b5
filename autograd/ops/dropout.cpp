#include "autograd/ops.h"
#include "kernels/elementwise.h"

namespace ring {
namespace {

// The mask is drawn again in the backward: it has an address, so nothing is kept.
void dropout_backward(Backward& back, Dropout mask) {
  if (back.wants(0)) {
    const Sink s = back.sink(0, back.grad().shape());
    mask.x = back.grad();
    mask.out = s.dst;
    mask.beta = s.beta;
    dropout_kernel(mask, back.ctx);
  }
  if (back.wants(1)) back.give(1, back.grad());
}

}  // namespace

Var dropout_add(Run& run, const Var& x, const Var& residual, float rate, std::uint32_t site) {
  RING_CHECK(rate >= 0 && rate < 1, "dropout_add: rate ", rate, " is not in [0, 1)");
  if (rate == 0) return residual.value.defined() ? add(run, x, residual) : x;
  RING_CHECK(!residual.value.defined() || residual.value.shape() == x.value.shape(), "dropout_add: ", describe(x.value),
             " and residual ", describe(residual.value), ": shapes differ");
  const std::int64_t row = x.value.dim(0) > 0 ? x.value.numel() / x.value.dim(0) : 0;
  Dropout mask{
      .rate = rate, .site = {.seed = run.seed, .step = run.step, .site = site}, .first_element = run.first_row * row};
  Dropout forward = mask;
  forward.x = x.value;
  forward.residual = residual.value;
  forward.out = run.ctx.empty(x.value.shape());
  dropout_kernel(forward, run.ctx);
  if (!run.tape) return {forward.out, nullptr};
  return run.tape->record("dropout", forward.out, {x.slot, residual.slot},
                          [mask](Backward& back) { dropout_backward(back, mask); });
}

}  // namespace ring
