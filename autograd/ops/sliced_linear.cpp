// Linear layers under tensor parallelism: communication of rows overlaps with GEMMs.

#include <optional>

#include "autograd/ops/linear.h"
#include "autograd/ops/pipelined_rows.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

// Returns false if NCCL kernels would share the multiprocessors with the GEMMs, which makes both slower than running
// them in turn.
bool overlaps(const Communicator& tp) { return tp.backend() != "nccl" || tp.uses_copy_engines(); }

Tensor product_of_gathered(const ExecContext& ctx, Communicator& tp, const LinearInputs<Tensor>& in) {
  const auto& [x, w, b, residual] = in;
  const Tensor y = ctx.empty({x.dim(0) * tp.size(), w.dim(0)}, x.dtype());
  PipelinedAllGather gathered(ctx, tp, x, w.dim(0));
  const auto multiply = [&](std::int64_t first, const Tensor& rows) {
    const auto part = [&](const Tensor& t) { return t.defined() ? t.narrow(0, first, rows.dim(0)) : t; };
    linear_forward(ctx, {rows, w, b, part(residual)}, part(y));
  };
  gathered.for_each_piece(multiply, {});
  return y;
}

// Computes dx = beta * dx + dy w + the other processes' contributions. late: true if the contributions have probably
// arrived by now, so that the GEMM can add the first one.
void add_own_rows(PipelinedReduceScatter& reduced, const Tensor& dy, const Tensor& w, const Sink& dx, bool late,
                  const ExecContext& ctx) {
  const Tensor sum = late && dx.beta == 0 ? reduced.wait_for_next() : Tensor{};
  matmul_kernel({.a = dy, .b = w, .c = dx.dst, .beta = dx.beta, .residual = sum}, ctx);
  reduced.add_remaining_to(dx.dst);
}

// Runs the backward of y = X w^T + b + r, where X has the rows of all processes. dx is this process's rows of dy w,
// summed over the processes; dw is dy^T X. The rows of X are gathered again while dy is multiplied by w.
void gather_linear_backward(const Backward& back, Communicator& tp, const LinearInputs<SlotPtr>& inputs,
                            const LinearInputs<Saved>& saved) {
  const ExecContext& ctx = back.ctx;
  const Tensor &dy = back.grad(), w = saved.w.get(ctx);
  const Shape shape{dy.dim(0) / tp.size(), w.dim(1)};
  std::optional<PipelinedAllGather> gathered;
  if (inputs.w) gathered.emplace(ctx, tp, saved.x.get(ctx), 2 * w.dim(0));
  std::optional<PipelinedReduceScatter> reduced;
  if (inputs.x)
    reduced.emplace(ctx, tp, shape, dy.dtype(), w.dim(0), [&](std::int64_t first, const Tensor& dst) {
      input_gradient(ctx, dy.narrow(0, first, dst.dim(0)), w, {dst});
    });
  if (gathered) {
    Sink dw = back.sink(inputs.w, w.shape(), w.dtype());
    gathered->for_each_piece(
        {}, [&](int rank, const Tensor& rows) { weight_gradient(ctx, rows_of_rank(dy, rank, tp), rows, dw); });
  }
  bias_gradient(back, inputs.b, dy, {w.dim(0)}, w.dtype());
  if (reduced)
    add_own_rows(*reduced, rows_of_rank(dy, tp.rank(), tp), w, back.sink(inputs.x, shape, dy.dtype()),
                 gathered.has_value(), ctx);
  back.accumulate(inputs.residual, dy);
}

Tensor scattered_product(const ExecContext& ctx, Communicator& tp, const LinearInputs<Tensor>& in) {
  const auto& [x, w, b, residual] = in;
  const Tensor y = ctx.empty({x.dim(0) / tp.size(), w.dim(0)}, x.dtype());
  PipelinedReduceScatter reduced(ctx, tp, y.shape(), y.dtype(), w.dim(1), [&](std::int64_t first, const Tensor& dst) {
    linear_forward(ctx, {x.narrow(0, first, dst.dim(0)), w, {}, {}}, dst);
  });
  linear_forward(ctx, {rows_of_rank(x, tp.rank(), tp), w, b, {}}, y);
  reduced.add_remaining_to(y, residual);
  return y;
}

// Runs the backward of y = S + b + r, where S is this process's rows of x w^T, summed over the processes. Gathers all
// rows of dy, and computes dx = dy w and dw = dy^T x.
void linear_scatter_backward(const Backward& back, Communicator& tp, const LinearInputs<SlotPtr>& inputs,
                             const LinearInputs<Saved>& saved) {
  const ExecContext& ctx = back.ctx;
  const Tensor &dy = back.grad(), w = saved.w.get(ctx);
  PipelinedAllGather::PieceFn multiply;
  if (inputs.x)
    multiply = [&, dx = back.sink(inputs.x, {dy.dim(0) * tp.size(), w.dim(1)}, dy.dtype())](std::int64_t first,
                                                                                            const Tensor& rows) {
      input_gradient(ctx, rows, w, {dx.dst.narrow(0, first, rows.dim(0)), dx.beta});
    };
  PipelinedAllGather::RankFn add_weight;
  if (inputs.w)
    add_weight = [&, x = saved.x.get(ctx), dw = back.sink(inputs.w, w.shape(), w.dtype())](int rank,
                                                                                           const Tensor& rows) mutable {
      weight_gradient(ctx, rows, rows_of_rank(x, rank, tp), dw);
    };
  const std::int64_t products = (inputs.x ? 1 : 0) + (inputs.w ? 1 : 0);
  if (products > 0) PipelinedAllGather(ctx, tp, dy, products * w.dim(1)).for_each_piece(multiply, add_weight);
  bias_gradient(back, inputs.b, dy, {w.dim(0)}, w.dtype());
  back.accumulate(inputs.residual, dy);
}

using Forward = Tensor (*)(const ExecContext&, Communicator&, const LinearInputs<Tensor>&);
using Rule = void (*)(const Backward&, Communicator&, const LinearInputs<SlotPtr>&, const LinearInputs<Saved>&);

Var sliced_linear(Run& run, std::string_view name, const LinearInputs<Var>& in, Forward forward, Rule rule) {
  Communicator& tp = *run.layout.tp;
  return run.op(
      name, in,
      [&tp, forward](const ExecContext& ctx, const LinearInputs<Tensor>& tensors) { return forward(ctx, tp, tensors); },
      [&tp, rule](const Backward& back, const auto& slots, const LinearInputs<Saved>& saved) {
        rule(back, tp, slots, saved);
      },
      save_for_gradients);
}

}  // namespace

Var gather_linear(Run& run, const Var& x, const Var& w, const Var& b, const Var& residual) {
  if (!is_tensor_parallel(run) || !overlaps(*run.layout.tp))
    return linear(run, all_gather_rows(run, x), w, b, residual);
  check_linear("gather_linear", x, w, b);
  check_residual("gather_linear", residual, {x.value.dim(0) * run.layout.tp->size(), w.value.dim(0)});
  return sliced_linear(run, "gather_linear", {x, w, b, residual}, product_of_gathered, gather_linear_backward);
}

Var linear_scatter(Run& run, const Var& x, const Var& w, const Var& b, const Var& residual) {
  if (!is_tensor_parallel(run)) return linear(run, x, w, b, residual);
  if (!overlaps(*run.layout.tp)) return reduce_scatter_rows(run, linear(run, x, w), b, residual);
  check_linear("linear_scatter", x, w, b);
  check_residual("linear_scatter", residual, {local_rows(run, x.value).dim(0), w.value.dim(0)});
  return sliced_linear(run, "linear_scatter", {x, w, b, residual}, scattered_product, linear_scatter_backward);
}

}  // namespace ring
