#include "autograd/ops.h"
#include "comm/communicator.h"
#include "kernels/elementwise.h"

namespace ring {
namespace {

// What finds a mask in a step.
template <class T>
struct Address {
  T rows, state;
};

// Where the mask is: it is drawn again in the backward, so nothing of it is kept.
struct Mask {
  float rate;
  RandomSite site;
  std::int64_t first_element;

  Dropout on(const Tensor& x, const Address<Tensor>& a) const {
    return {.x = x, .rate = rate, .site = site, .first_element = first_element, .rows = a.rows, .state = a.state};
  }
};

template <class T>
struct Inputs {
  T x, residual;
};

template <class T>
struct Operands {
  Inputs<T> inputs;
  Address<T> address;
};

void dropout_backward(const Backward& back, const Inputs<SlotPtr>& inputs, const Address<Saved>& saved,
                      const Mask& mask) {
  if (inputs.x) {
    const Sink s = back.sink(inputs.x, back.grad().shape(), back.grad().dtype());
    Dropout args = mask.on(back.grad(), {saved.rows.get(back.ctx), saved.state.get(back.ctx)});
    args.out = s.dst;
    args.beta = s.beta;
    dropout_kernel(args, back.ctx);
  }
  back.accumulate(inputs.residual, back.grad());
}

Tensor masked(const ExecContext& ctx, const Operands<Tensor>& of, const Mask& mask) {
  const Tensor& x = of.inputs.x;
  Dropout args = mask.on(x, of.address);
  args.residual = of.inputs.residual;
  args.out = ctx.empty(x.shape(), x.dtype());
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
  const Tensor y = masked(run.ctx, {{x.value, residual.value}, {address.rows, run.state}}, mask);
  if (!run.records(x, residual)) return {y, nullptr};
  const Address<Saved> saved{save_in_place(address.rows), save_in_place(run.state)};
  const Var out =
      run.record("dropout", y, Inputs<SlotPtr>{x.slot, residual.slot}, saved,
                 [mask](const Backward& back, const Inputs<SlotPtr>& inputs, const Address<Saved>& saved_address) {
                   dropout_backward(back, inputs, saved_address, mask);
                 });
  if (!run.recompute) return out;
  return recomputable(out, Operands<Saved>{{run.save(x), run.save(residual)}, saved},
                      [mask](const ExecContext& ctx, const Operands<Tensor>& of) { return masked(ctx, of, mask); });
}

}  // namespace ring
