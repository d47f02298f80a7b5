#include "autograd/ops/pipelined_rows.h"

#include <utility>

#include "kernels/elementwise.h"

namespace ring {
namespace {

// Number of multiply-adds that a GPU computes in the time that it takes to send one element to a different GPU,
// including the latency of a message (bf16 on an H100: 290 GB/s, 670 TFLOP/s). With fewer per element, computation
// cannot hide the whole message, which is then sent in two pieces.
constexpr std::int64_t kTermsPerSentElement = 2600;

std::int64_t rows_of_piece(std::int64_t rows, std::int64_t terms) {
  return terms < kTermsPerSentElement && rows % 2 == 0 ? rows / 2 : rows;
}

int rank_at_distance(const Communicator& tp, int d) { return (tp.rank() + d + tp.size()) % tp.size(); }

}  // namespace

Tensor rows_of_rank(const Tensor& all, int rank, const Communicator& tp) {
  const std::int64_t n = all.dim(0) / tp.size();
  return all.narrow(0, rank * n, n);
}

PipelinedAllGather::PipelinedAllGather(const ExecContext& ctx, Communicator& tp, const Tensor& own, std::int64_t terms)
    : ctx_(ctx), rank_(tp.rank()), own_(own) {
  const std::int64_t n = own.dim(0), rows = rows_of_piece(n, terms);
  for (int d = 1; d < tp.size(); ++d) {
    const int to = rank_at_distance(tp, d), from = rank_at_distance(tp, -d);
    Message& m = messages_.emplace_back(from, tp.receive_buffer(own.shape(), own.dtype(), ctx.stream));
    for (std::int64_t first = 0; first < n; first += rows)
      m.pieces.push_back(tp.exchange({{own.narrow(0, first, rows), to}}, {{m.rows.narrow(0, first, rows), from}},
                                     ctx.stream.record()));
  }
}

void PipelinedAllGather::for_each_piece(const PieceFn& on_piece, const RankFn& on_rank) {
  const std::int64_t n = own_.dim(0);
  if (on_piece) on_piece(rank_ * n, own_);
  if (on_rank) on_rank(rank_, own_);
  for (Message& m : messages_) {
    const std::int64_t rows = n / static_cast<std::int64_t>(m.pieces.size());
    std::int64_t first = 0;
    for (Work& piece : m.pieces) {
      piece.wait(ctx_.stream);
      if (on_piece) on_piece(m.from * n + first, m.rows.narrow(0, first, rows));
      first += rows;
    }
    if (on_rank) on_rank(m.from, m.rows);
    m.rows = {};
  }
}

PipelinedReduceScatter::PipelinedReduceScatter(const ExecContext& ctx, Communicator& tp, const Shape& own, DType type,
                                               std::int64_t terms, const ComputeRows& compute)
    : ctx_(ctx) {
  const std::int64_t n = own[0], rows = rows_of_piece(n, terms);
  for (int d = 1; d < tp.size(); ++d) {
    const int to = rank_at_distance(tp, d), from = rank_at_distance(tp, -d);
    Message& m = messages_.emplace_back(tp.receive_buffer(own, type, ctx.stream));
    // The peer may write to m.sum from here on: it need not wait for compute(), which is queued before exchange()'s
    // event.
    const Event free = ctx.stream.record();
    for (std::int64_t first = 0; first < n; first += rows) {
      const Tensor sent = ctx.empty({rows, own[1]}, type);
      compute(to * n + first, sent);
      const Transfer received{.tensor = m.sum.narrow(0, first, rows), .peer = from, .free = free};
      m.pieces.push_back(tp.exchange({{sent, to}}, {received}, ctx.stream.record()));
    }
  }
}

Tensor PipelinedReduceScatter::wait_for_next() {
  Message& m = messages_[next_++];
  for (Work& piece : m.pieces) piece.wait(ctx_.stream);
  return std::exchange(m.sum, {});
}

void PipelinedReduceScatter::add_remaining_to(const Tensor& y, const Tensor& residual) {
  while (pending() > 0) {
    const Tensor sum = wait_for_next();
    axpby_kernel({.x = sum, .y = y, .out = y, .alpha = 1, .beta = 1, .z = pending() == 0 ? residual : Tensor{}}, ctx_);
  }
}

}  // namespace ring
