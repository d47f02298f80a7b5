#include "autograd/ops/linear.h"
#include "comm/communicator.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

std::int64_t rows_per_process(const Communicator& tp, const Tensor& t, const char* op) {
  RING_CHECK(t.shape().size() > 0 && t.dim(0) % tp.size() == 0, op, ": the rows of ", describe(t),
             " do not divide among ", tp.size(), " processes of tensor parallelism");
  return t.dim(0) / tp.size();
}

Tensor gathered(const ExecContext& ctx, Communicator& tp, const Tensor& x) {
  const Tensor all = ctx.empty({x.dim(0) * tp.size(), x.dim(1)}, x.dtype());
  tp.all_gather(all, x, ctx.stream.record()).wait(ctx.stream);
  return all;
}

void reduce_scatter(const ExecContext& ctx, Communicator& tp, const Tensor& all, const Tensor& out) {
  tp.reduce_scatter(out, all, Reduce::sum, ctx.stream.record()).wait(ctx.stream);
}

template <class T>
struct ScatterTerms {
  T x, b, residual;
};

Tensor reduce_scattered(const ExecContext& ctx, Communicator& tp, const ScatterTerms<Tensor>& terms) {
  const auto& [x, b, residual] = terms;
  const Tensor y = ctx.empty({x.dim(0) / tp.size(), x.dim(1)}, x.dtype());
  reduce_scatter(ctx, tp, x, y);
  if (b.defined()) add_bias(ctx, b, y);
  if (residual.defined()) axpby_kernel({.x = y, .y = residual, .out = y, .alpha = 1, .beta = 1}, ctx);
  return y;
}

// bias: shape of the bias.
void reduce_scatter_backward(const Backward& back, Communicator& tp, const ScatterTerms<SlotPtr>& terms,
                             const Shape& bias, DType type) {
  const Tensor& dy = back.grad();
  if (terms.x) back.accumulate(terms.x, gathered(back.ctx, tp, dy));
  bias_gradient(back, terms.b, dy, bias, type);  // of this process's rows; sum_replicated() adds the others'
  back.accumulate(terms.residual, dy);
}

enum class Copy : std::uint8_t { to_whole, to_blocks };
// Copies between `whole` [R,C] and `blocks`: `parts` blocks [R,C/parts], one after another. Block i holds
// columns i C/parts on.
void copy_column_blocks(const ExecContext& ctx, const Tensor& whole, const Tensor& blocks, int parts, Copy copy) {
  const std::int64_t rows = whole.dim(0);
  const std::size_t row_bytes = static_cast<std::size_t>(whole.dim(1)) * size_of(whole.dtype());
  const std::size_t block_row_bytes = row_bytes / parts;
  for (int i = 0; i < parts; ++i) {
    std::byte* columns = whole.raw() + static_cast<std::size_t>(i) * block_row_bytes;
    std::byte* block = blocks.narrow(0, i * rows, rows).raw();
    if (copy == Copy::to_whole)
      ctx.stream.impl().copy_rows(columns, row_bytes, block, block_row_bytes, block_row_bytes,
                                  static_cast<std::size_t>(rows));
    else
      ctx.stream.impl().copy_rows(block, block_row_bytes, columns, row_bytes, block_row_bytes,
                                  static_cast<std::size_t>(rows));
  }
}

// Exchanges this process's channels of all rows, [N,C/tp], for all channels of its rows, [N/tp,C].
Tensor rows_from_channels(const ExecContext& ctx, Communicator& tp, const Tensor& x) {
  const Tensor blocks = ctx.empty(x.shape(), x.dtype());
  tp.all_to_all(blocks, x, ctx.stream.record()).wait(ctx.stream);
  const Tensor y = ctx.empty({x.dim(0) / tp.size(), x.dim(1) * tp.size()}, x.dtype());
  copy_column_blocks(ctx, y, blocks, tp.size(), Copy::to_whole);
  return y;
}

// The inverse of rows_from_channels().
Tensor channels_from_rows(const ExecContext& ctx, Communicator& tp, const Tensor& x) {
  const Shape shape{x.dim(0) * tp.size(), x.dim(1) / tp.size()};
  const Tensor blocks = ctx.empty(shape, x.dtype()), y = ctx.empty(shape, x.dtype());
  copy_column_blocks(ctx, x, blocks, tp.size(), Copy::to_blocks);
  tp.all_to_all(y, blocks, ctx.stream.record()).wait(ctx.stream);
  return y;
}

using Swap = Tensor (*)(const ExecContext&, Communicator&, const Tensor&);

Var swap(Run& run, std::string_view name, const Var& x, Swap forward, Swap backward) {
  Communicator& tp = *run.layout.tp;
  return run.op(
      name, x, [&tp, forward](const ExecContext& ctx, const Tensor& in) { return forward(ctx, tp, in); },
      [&tp, backward](const Backward& back, const SlotPtr& input) {
        back.accumulate(input, backward(back.ctx, tp, back.grad()));
      });
}

}  // namespace

bool is_tensor_parallel(const Run& run) { return run.layout.tp && run.layout.tp->size() > 1; }

Tensor local_rows(const Run& run, const Tensor& t) {
  if (!is_tensor_parallel(run)) return t;
  const std::int64_t rows = rows_per_process(*run.layout.tp, t, "local_rows");
  return t.narrow(0, run.layout.tp->rank() * rows, rows);
}

Var all_gather_rows(Run& run, const Var& x) {
  if (!is_tensor_parallel(run)) return x;
  Communicator& tp = *run.layout.tp;
  RING_CHECK(x.value.shape().size() == 2, "all_gather_rows: ", describe(x.value), ", expected [N,C]");
  const Tensor y = gathered(run.ctx, tp, x.value);
  if (!run.records(x)) return {y, nullptr};
  const auto rule = [&tp, like = x.value.shape()](const Backward& back, const SlotPtr& input) {
    const Tensor dx = back.ctx.empty(like, back.grad().dtype());
    reduce_scatter(back.ctx, tp, back.grad(), dx);
    back.accumulate(input, dx);
  };
  // Not run.op(): the output has a recipe even if the run does not recompute. Later steps save this process's rows, and
  // backward gathers them again.
  return recomputable(run.record("all_gather_rows", y, x.slot, rule), run.save(x),
                      [&tp](const ExecContext& ctx, const Tensor& in) { return gathered(ctx, tp, in); });
}

Var swap_channels_for_rows(Run& run, const Var& x) {
  RING_CHECK(is_tensor_parallel(run) && x.value.shape().size() == 2, "swap_channels_for_rows: ", describe(x.value),
             ", expected [N,C/tp] of a sliced model");
  rows_per_process(*run.layout.tp, x.value, "swap_channels_for_rows");
  return swap(run, "swap_channels_for_rows", x, rows_from_channels, channels_from_rows);
}

Var swap_rows_for_channels(Run& run, const Var& x) {
  RING_CHECK(is_tensor_parallel(run) && x.value.shape().size() == 2 && x.value.dim(1) % run.layout.tp->size() == 0,
             "swap_rows_for_channels: ", describe(x.value),
             ", expected [N/tp,C] of a sliced model, where tp divides C");
  return swap(run, "swap_rows_for_channels", x, channels_from_rows, rows_from_channels);
}

Var reduce_scatter_rows(Run& run, const Var& x, const Var& b, const Var& residual) {
  RING_CHECK(is_tensor_parallel(run), "reduce_scatter_rows: the run has no tensor parallelism");
  Communicator& tp = *run.layout.tp;
  RING_CHECK(x.value.shape().size() == 2, "reduce_scatter_rows: ", describe(x.value), ", expected [N,C]");
  const Shape shape{rows_per_process(tp, x.value, "reduce_scatter_rows"), x.value.dim(1)};
  RING_CHECK(!b.value.defined() || b.value.shape() == Shape{shape[1]}, "reduce_scatter_rows: bias ", describe(b.value),
             " for ", describe(x.value));
  RING_CHECK(!residual.value.defined() || residual.value.shape() == shape, "reduce_scatter_rows: residual ",
             describe(residual.value), " for rows of ", shape);
  return run.op(
      "reduce_scatter_rows", ScatterTerms<Var>{x, b, residual},
      [&tp](const ExecContext& ctx, const ScatterTerms<Tensor>& terms) { return reduce_scattered(ctx, tp, terms); },
      [&tp, bias = b.value.shape(), type = b.value.dtype()](const Backward& back, const ScatterTerms<SlotPtr>& terms) {
        reduce_scatter_backward(back, tp, terms, bias, type);
      });
}

}  // namespace ring
