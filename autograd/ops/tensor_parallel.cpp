#include "autograd/ops/linear.h"
#include "comm/communicator.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

// Returns the number of rows of each process.
std::int64_t share_of(const Communicator& tp, const Tensor& t, const char* op) {
  RING_CHECK(t.shape().size() > 0 && t.dim(0) % tp.size() == 0, op, ": the rows of ", describe(t),
             " do not divide among ", tp.size(), " processes of tensor parallelism");
  return t.dim(0) / tp.size();
}

Tensor gathered(const ExecContext& ctx, Communicator& tp, const Tensor& x) {
  const Tensor all = ctx.empty({x.dim(0) * tp.size(), x.dim(1)}, x.dtype());
  tp.all_gather(all, x, ctx.stream.record()).wait(ctx.stream);
  return all;
}

void scatter(const ExecContext& ctx, Communicator& tp, const Tensor& all, const Tensor& out) {
  tp.reduce_scatter(out, all, Reduce::sum, ctx.stream.record()).wait(ctx.stream);
}

template <class T>
struct Terms {
  T x, b, residual;
};

Tensor scattered(const ExecContext& ctx, Communicator& tp, const Terms<Tensor>& terms) {
  const auto& [x, b, residual] = terms;
  const Tensor y = ctx.empty({x.dim(0) / tp.size(), x.dim(1)}, x.dtype());
  scatter(ctx, tp, x, y);
  if (b.defined()) add_bias(ctx, b, y);
  if (residual.defined()) axpby_kernel({.x = y, .y = residual, .out = y, .alpha = 1, .beta = 1}, ctx);
  return y;
}

// bias: shape of the bias.
void scatter_backward(const Backward& back, Communicator& tp, const Terms<SlotPtr>& terms, const Shape& bias,
                      DType type) {
  const Tensor& dy = back.grad();
  if (terms.x) back.accumulate(terms.x, gathered(back.ctx, tp, dy));
  bias_gradient(back, terms.b, dy, bias, type);
  back.accumulate(terms.residual, dy);
}

// Copies between [R,C] and its columns as `parts` consecutive blocks of [R,C/parts].
void copy_column_blocks(const ExecContext& ctx, const Tensor& whole, const Tensor& blocks, int parts, bool gather) {
  const std::int64_t rows = whole.dim(0);
  const std::size_t row = static_cast<std::size_t>(whole.dim(1)) * size_of(whole.dtype()), share = row / parts;
  for (int i = 0; i < parts; ++i) {
    std::byte* columns = whole.raw() + static_cast<std::size_t>(i) * share;
    std::byte* block = blocks.narrow(0, i * rows, rows).raw();
    if (gather)
      ctx.stream.impl().copy_rows(columns, row, block, share, share, static_cast<std::size_t>(rows));
    else
      ctx.stream.impl().copy_rows(block, share, columns, row, share, static_cast<std::size_t>(rows));
  }
}

Tensor rows_from_channels(const ExecContext& ctx, Communicator& tp, const Tensor& x) {
  const Tensor blocks = ctx.empty(x.shape(), x.dtype());
  tp.all_to_all(blocks, x, ctx.stream.record()).wait(ctx.stream);
  const Tensor y = ctx.empty({x.dim(0) / tp.size(), x.dim(1) * tp.size()}, x.dtype());
  copy_column_blocks(ctx, y, blocks, tp.size(), true);
  return y;
}

Tensor channels_from_rows(const ExecContext& ctx, Communicator& tp, const Tensor& x) {
  const Shape shape{x.dim(0) * tp.size(), x.dim(1) / tp.size()};
  const Tensor blocks = ctx.empty(shape, x.dtype()), y = ctx.empty(shape, x.dtype());
  copy_column_blocks(ctx, x, blocks, tp.size(), false);
  tp.all_to_all(y, blocks, ctx.stream.record()).wait(ctx.stream);
  return y;
}

using Swap = Tensor (*)(const ExecContext&, Communicator&, const Tensor&);

Var swap(Run& run, std::string_view name, const Var& x, Swap there, Swap back_again) {
  Communicator& tp = *run.tp;
  return run.op(
      name, x, [&tp, there](const ExecContext& ctx, const Tensor& in) { return there(ctx, tp, in); },
      [&tp, back_again](const Backward& back, const SlotPtr& input) {
        back.accumulate(input, back_again(back.ctx, tp, back.grad()));
      });
}

}  // namespace

bool is_tensor_parallel(const Run& run) { return run.tp && run.tp->size() > 1; }

Tensor own_rows(const Run& run, const Tensor& t) {
  if (!is_tensor_parallel(run)) return t;
  const std::int64_t rows = share_of(*run.tp, t, "own_rows");
  return t.narrow(0, run.tp->rank() * rows, rows);
}

Var all_gather_rows(Run& run, const Var& x) {
  if (!is_tensor_parallel(run)) return x;
  Communicator& tp = *run.tp;
  RING_CHECK(x.value.shape().size() == 2, "all_gather_rows: ", describe(x.value), ", expected [N,C]");
  const Tensor y = gathered(run.ctx, tp, x.value);
  if (!run.records(x)) return {y, nullptr};
  const auto rule = [&tp, like = x.value.shape()](const Backward& back, const SlotPtr& input) {
    const Tensor dx = back.ctx.empty(like, back.grad().dtype());
    scatter(back.ctx, tp, back.grad(), dx);
    back.accumulate(input, dx);
  };
  return recomputable(run.record("all_gather_rows", y, x.slot, rule), run.save(x),
                      [&tp](const ExecContext& ctx, const Tensor& in) { return gathered(ctx, tp, in); });
}

Var swap_channels_for_rows(Run& run, const Var& x) {
  RING_CHECK(is_tensor_parallel(run) && x.value.shape().size() == 2, "swap_channels_for_rows: ", describe(x.value),
             ", expected [N,C/tp] of a sliced model");
  share_of(*run.tp, x.value, "swap_channels_for_rows");
  return swap(run, "swap_channels_for_rows", x, rows_from_channels, channels_from_rows);
}

Var swap_rows_for_channels(Run& run, const Var& x) {
  RING_CHECK(is_tensor_parallel(run) && x.value.shape().size() == 2 && x.value.dim(1) % run.tp->size() == 0,
             "swap_rows_for_channels: ", describe(x.value),
             ", expected [N/tp,C] of a sliced model, where tp divides C");
  return swap(run, "swap_rows_for_channels", x, channels_from_rows, rows_from_channels);
}

Var reduce_scatter_rows(Run& run, const Var& x, const Var& b, const Var& residual) {
  RING_CHECK(is_tensor_parallel(run), "reduce_scatter_rows: the run has no tensor parallelism");
  Communicator& tp = *run.tp;
  RING_CHECK(x.value.shape().size() == 2, "reduce_scatter_rows: ", describe(x.value), ", expected [N,C]");
  const Shape shape{share_of(tp, x.value, "reduce_scatter_rows"), x.value.dim(1)};
  RING_CHECK(!b.value.defined() || b.value.shape() == Shape{shape[1]}, "reduce_scatter_rows: bias ", describe(b.value),
             " for ", describe(x.value));
  RING_CHECK(!residual.value.defined() || residual.value.shape() == shape, "reduce_scatter_rows: residual ",
             describe(residual.value), " for rows of ", shape);
  return run.op(
      "reduce_scatter_rows", Terms<Var>{x, b, residual},
      [&tp](const ExecContext& ctx, const Terms<Tensor>& terms) { return scattered(ctx, tp, terms); },
      [&tp, bias = b.value.shape(), type = b.value.dtype()](const Backward& back, const Terms<SlotPtr>& terms) {
        scatter_backward(back, tp, terms, bias, type);
      });
}

}  // namespace ring
