#include "autograd/ops.h"
#include "comm/communicator.h"
#include "kernels/elementwise.h"

namespace ring {
namespace {

// Where the mask is: it is drawn again in the backward, so nothing of it is kept.
struct Mask {
  float rate;
  RandomSite site;
  std::int64_t first_element;

  Dropout on(const Tensor& x, const Tensor& rows, const Tensor& state) const {
    return {.x = x, .rate = rate, .site = site, .first_element = first_element, .rows = rows, .state = state};
  }
};

// Saved: rows, state.
void dropout_backward(Backward& back, const Mask& mask) {
  if (back.needs_grad(0)) {
    const Sink s = back.sink(0, back.grad().shape(), back.grad().dtype());
    Dropout args = mask.on(back.grad(), back.saved(0), back.saved(1));
    args.out = s.dst;
    args.beta = s.beta;
    dropout_kernel(args, back.ctx);
  }
  if (back.needs_grad(1)) back.accumulate(1, back.grad());
}

Tensor masked(const ExecContext& ctx, Dropout args, const Tensor& residual) {
  args.residual = residual;
  args.out = ctx.empty(args.x.shape(), args.x.dtype());
  dropout_kernel(args, ctx);
  return args.out;
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
  const Mask mask{rate, {.seed = run.seed, .step = run.step, .site = site}, address.first * row};
  const Tensor y = masked(run.ctx, mask.on(x.value, address.rows, run.state), residual.value);
  if (!run.records(x, residual)) return {y, nullptr};
  const Saved rows = save_in_place(address.rows), state = save_in_place(run.state);
  const Var out = run.record("dropout", y, {x.slot, residual.slot}, {rows, state},
                             [mask](Backward& back) { dropout_backward(back, mask); });
  if (!run.recompute) return out;
  return recomputable(out, {rows, state, run.save(x), run.save(residual)},
                      [mask](const ExecContext& ctx, const Tensors& from) {
                        return masked(ctx, mask.on(from[2], from[0], from[1]), from[3]);
                      });
}

}  // namespace ring
