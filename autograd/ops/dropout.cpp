#include "autograd/ops.h"
#include "comm/communicator.h"
#include "kernels/elementwise.h"

namespace ring {
namespace {

// The mask is drawn again in the backward: it has an address, so nothing is kept.
void dropout_backward(Backward& back, Dropout mask) {
  if (back.needs_grad(0)) {
    const Sink s = back.sink(0, back.grad().shape(), back.grad().dtype());
    mask.x = back.grad();
    mask.out = s.dst;
    mask.beta = s.beta;
    dropout_kernel(mask, back.ctx);
  }
  if (back.needs_grad(1)) back.accumulate(1, back.grad());
}

Tensor masked(const ExecContext& ctx, Dropout mask, const Tensor& x, const Tensor& residual) {
  mask.x = x;
  mask.residual = residual;
  mask.out = ctx.empty(x.shape(), x.dtype());
  dropout_kernel(mask, ctx);
  return mask.out;
}

// Where x's rows are among those of all processes: row i is row first + i, or first + rows[i].
struct RowAddress {
  std::int64_t first = 0;
  Tensor rows;
};
RowAddress address_of(const Run& run, const Tensor& x) {
  const int rank = sliced(run) ? run.tp->rank() : 0, ranks = sliced(run) ? run.tp->size() : 1;
  const std::int64_t before = rank * x.dim(0), all = ranks * x.dim(0);
  if (!run.rows.defined()) return {run.first_row + before, {}};
  RING_CHECK(run.rows.numel() == all, "dropout_add: ", describe(x), " with ", run.rows.numel(),
             " global rows, expected ", all);
  return {run.first_row, run.rows.narrow(0, before, x.dim(0))};
}

}  // namespace

Var dropout_add(Run& run, const Var& x, const Var& residual, float rate, std::uint32_t site) {
  RING_CHECK(rate >= 0 && rate < 1, "dropout_add: rate ", rate, " is not in [0, 1)");
  if (rate == 0) return residual.value.defined() ? add(run, x, residual) : x;
  RING_CHECK(!residual.value.defined() || residual.value.shape() == x.value.shape(), "dropout_add: ", describe(x.value),
             " and residual ", describe(residual.value), ": shapes differ");
  const RowAddress address = address_of(run, x.value);
  const std::int64_t row = x.value.dim(0) > 0 ? x.value.numel() / x.value.dim(0) : 0;
  const Dropout mask{.rate = rate,
                     .site = {.seed = run.seed, .step = run.step, .site = site},
                     .first_element = address.first * row,
                     .rows = address.rows,
                     .state = run.state};
  const Tensor y = masked(run.ctx, mask, x.value, residual.value);
  if (!run.tape) return {y, nullptr};
  Var out = run.record("dropout", y, {x.slot, residual.slot}, [mask](Backward& back) { dropout_backward(back, mask); });
  return recomputable(run, out, [mask, in = Saved(x), r = Saved(residual)](const ExecContext& ctx) {
    return masked(ctx, mask, in.get(ctx), r.get(ctx));
  });
}

}  // namespace ring
