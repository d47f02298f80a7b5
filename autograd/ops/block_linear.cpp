#include "autograd/block_linear.h"

#include "autograd/ops/linear.h"

namespace ring {
namespace {

template <class T>
struct BlockOperands {
  T x, w, residual;
};

// The blocks of a call. f(x, w, y) gets the first column of a block's input, the first row of its weight, and its
// columns of the output.
struct BlocksOfCall {
  static constexpr bool kKeepsNoTensor = true;
  std::vector<OutputBlock> outputs;
  std::int64_t channels;

  template <class Fn>
  void for_each(std::int64_t inputs, const Fn& f) const {
    std::int64_t column = 0, row = 0;
    for (const OutputBlock& y : outputs) {
      f(column, row, y);
      column += inputs;
      row += y.count;
    }
  }
};

Tensor block_columns(const Tensor& t, const OutputBlock& block) {
  return t.defined() ? t.narrow(1, block.first, block.count) : t;
}

struct BlockLinearForward : BlocksOfCall {
  Tensor operator()(const ExecContext& ctx, const BlockOperands<Tensor>& in) const {
    const std::int64_t k = in.w.dim(1);
    const bool covered = in.w.dim(0) == channels;
    const Shape shape{in.x.dim(0), channels};
    const Tensor y = covered ? ctx.empty(shape, in.x.dtype()) : ctx.zeros(shape, in.x.dtype());
    for_each(k, [&](std::int64_t column, std::int64_t row, const OutputBlock& out) {
      linear_forward(ctx,
                     {in.x.narrow(1, column, k), in.w.narrow(0, row, out.count), {}, block_columns(in.residual, out)},
                     block_columns(y, out));
    });
    return y;
  }
};

struct BlockLinearRule : BlocksOfCall {
  void operator()(const Backward& back, const BlockOperands<SlotPtr>& inputs, const BlockOperands<Saved>& saved) const {
    const ExecContext& ctx = back.ctx;
    const Tensor &dy = back.grad(), x = saved.x.get(ctx), w = saved.w.get(ctx);
    const std::int64_t k = w.dim(1);
    const Sink dx = back.sink(inputs.x, x.shape(), dy.dtype()), dw = back.sink(inputs.w, w.shape(), w.dtype());
    for_each(k, [&](std::int64_t column, std::int64_t row, const OutputBlock& out) {
      const Tensor dy_block = block_columns(dy, out);
      if (inputs.x) input_gradient(ctx, dy_block, w.narrow(0, row, out.count), {dx.dst.narrow(1, column, k), dx.beta});
      if (!inputs.w) return;
      Sink dw_block{dw.dst.narrow(0, row, out.count), dw.beta};
      weight_gradient(ctx, dy_block, x.narrow(1, column, k), dw_block);
    });
    back.accumulate(inputs.residual, dy);
  }
};

}  // namespace

Var block_linear(Run& run, const Var& x, const Var& w, const std::vector<OutputBlock>& blocks, std::int64_t channels,
                 const Var& residual) {
  std::int64_t rows = 0, end = 0;
  for (const OutputBlock& b : blocks) {
    RING_CHECK(b.count > 0 && b.first >= end && b.first + b.count <= channels, "block_linear: columns ", b.first,
               " to ", b.first + b.count, " of ", channels, " overlap a block or are out of order");
    end = b.first + b.count;
    rows += b.count;
  }
  RING_CHECK(w.value.shape().size() == 2 && w.value.dim(0) == rows && x.value.shape().size() == 2 &&
                 x.value.dim(1) == std::ssize(blocks) * w.value.dim(1),
             "block_linear: input ", describe(x.value), " and weight ", describe(w.value), " for ", blocks.size(),
             " blocks with ", rows, " outputs");
  check_residual("block_linear", residual, {x.value.dim(0), channels});
  RING_CHECK(!residual.value.defined() || rows == channels, "block_linear: a residual requires blocks for all columns");
  return run.op("block_linear", BlockOperands<Var>{x, w, residual}, BlockLinearForward{blocks, channels},
                BlockLinearRule{blocks, channels}, [](const Run& r, const BlockOperands<Var>& in) {
                  return BlockOperands<Saved>{.x = r.save(in.x), .w = r.save(in.w), .residual = {}};
                });
}

}  // namespace ring
