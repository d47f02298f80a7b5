#include "autograd/ops.h"
#include "comm/communicator.h"
#include "kernels/elementwise.h"

namespace ring {
namespace {

template <class T>
struct Operands {
  T x, residual;
  T rows, state;  // tensors that the mask depends on
};

// Numbers that the mask depends on. Backward draws the mask again, so the mask is not saved.
struct Mask {
  float rate;
  RandomSite site;
  std::int64_t first_element;

  Dropout on(const Tensor& x, const Tensor& rows, const Tensor& state) const {
    return {.x = x, .rate = rate, .site = site, .first_element = first_element, .rows = rows, .state = state};
  }
};

void dropout_backward(const Backward& back, const Operands<SlotPtr>& inputs, const Operands<Saved>& saved,
                      const Mask& mask) {
  if (inputs.x) {
    const Sink s = back.sink(inputs.x, back.grad().shape(), back.grad().dtype());
    Dropout args = mask.on(back.grad(), saved.rows.get(back.ctx), saved.state.get(back.ctx));
    args.out = s.dst;
    args.beta = s.beta;
    dropout_kernel(args, back.ctx);
  }
  back.accumulate(inputs.residual, back.grad());
}

Tensor masked(const ExecContext& ctx, const Operands<Tensor>& of, const Mask& mask) {
  Dropout args = mask.on(of.x, of.rows, of.state);
  args.residual = of.residual;
  args.out = ctx.empty(of.x.shape(), of.x.dtype());
  dropout_kernel(args, ctx);
  return args.out;
}

// Global numbers of x's rows: row i is row first + i, or first + rows[i].
struct RowAddress {
  std::int64_t first = 0;
  Tensor rows;
};
RowAddress address_of(const Run& run, const Tensor& x) {
  const int rank = is_tensor_parallel(run) ? run.layout.tp->rank() : 0,
            ranks = is_tensor_parallel(run) ? run.layout.tp->size() : 1;
  const std::int64_t before = rank * x.dim(0), all = ranks * x.dim(0);
  if (!run.layout.rows.defined()) return {run.first_row + before, {}};
  RING_CHECK(run.layout.rows.numel() == all, "dropout_add: ", describe(x), " with ", run.layout.rows.numel(),
             " global rows, expected ", all);
  return {run.first_row, run.layout.rows.narrow(0, before, x.dim(0))};
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
  return run.op(
      "dropout", Operands<Var>{x, residual, in_place(address.rows), in_place(run.state)},
      [mask](const ExecContext& ctx, const Operands<Tensor>& of) { return masked(ctx, of, mask); },
      [mask](const Backward& back, const Operands<SlotPtr>& inputs, const Operands<Saved>& saved) {
        dropout_backward(back, inputs, saved, mask);
      },
      [](const Run& r, const Operands<Var>& in) {
        return Operands<Saved>{.rows = r.save(in.rows), .state = r.save(in.state)};
      });
}

}  // namespace ring
