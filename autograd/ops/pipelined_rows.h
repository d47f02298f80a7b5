#pragma once
// Overlaps the communication of rows in tensor parallelism with computation. A process's own rows need no message: they
// are computed first when rows are gathered, and last when sums are reduce-scattered, so that messages are in flight
// meanwhile. Every process sends to the next rank first, then to the rank after it, and so on.

#include <cstdint>
#include <functional>
#include <vector>

#include "autograd/tape.h"
#include "comm/communicator.h"

namespace ring {

// Returns a rank's rows of a tensor with the rows of all ranks.
Tensor rows_of_rank(const Tensor& all, int rank, const Communicator& tp);

// Gathers the rows `own` [n,C] of every process. terms: number of multiply-adds that the caller computes per gathered
// element. If they are few, each message is sent in two pieces.
class PipelinedAllGather {
 public:
  PipelinedAllGather(const ExecContext&, Communicator& tp, const Tensor& own, std::int64_t terms);
  // Calls the functions for this process's own rows, then for the others' rows as they arrive. Call once.
  // on_piece(first, rows): `rows` begin at row `first` of all rows. on_rank(rank, rows): called after all rows of a
  // rank.
  using PieceFn = std::function<void(std::int64_t first, const Tensor& rows)>;
  using RankFn = std::function<void(int rank, const Tensor& rows)>;
  void for_each_piece(const PieceFn& on_piece, const RankFn& on_rank);

 private:
  struct Message {
    int from;
    Tensor rows;
    std::vector<Work> pieces;
  };
  const ExecContext& ctx_;
  int rank_;
  Tensor own_;
  std::vector<Message> messages_;
};

// Receives the other processes' contributions to this process's rows [n,C] of a sum over all processes. The constructor
// computes this process's contributions to the others' rows with compute(first, dst), where dst begins at row `first`
// of all rows. It sends each contribution while it computes the next. terms: multiply-adds per element of dst, as
// above.
class PipelinedReduceScatter {
 public:
  using ComputeRows = std::function<void(std::int64_t first, const Tensor& dst)>;
  PipelinedReduceScatter(const ExecContext&, Communicator& tp, const Shape& own, DType, std::int64_t terms,
                         const ComputeRows& compute);
  int pending() const { return static_cast<int>(messages_.size() - next_); }
  // Waits for the next contribution and returns it, [n,C]. The order depends only on the ranks.
  Tensor wait_for_next();
  // Adds the remaining contributions and residual [n,C], or none, to y. A residual requires pending() > 0: it is added
  // together with the last contribution.
  void add_remaining_to(const Tensor& y, const Tensor& residual = {});

 private:
  struct Message {
    Tensor sum;
    std::vector<Work> pieces;
  };
  const ExecContext& ctx_;
  std::vector<Message> messages_;
  std::size_t next_ = 0;
};

}  // namespace ring
