#pragma once
// Rows of the processes of tensor parallelism that travel while others are computed with. What this process has itself
// needs no message: it comes first where rows are gathered and last where sums are scattered, so that messages are
// under way meanwhile. Every process sends to the others in the same order of distances.

#include <cstdint>
#include <functional>
#include <vector>

#include "autograd/tape.h"
#include "comm/communicator.h"

namespace ring {

// The rows of a rank among those of all.
Tensor rows_of(const Tensor& all, int rank, const Communicator& tp);

// own [n,C] of every process. terms: multiply-adds for each element of `own` that are computed with a rank's rows.
class GatheredRows {
 public:
  GatheredRows(const ExecContext&, Communicator& tp, const Tensor& own, std::int64_t terms);
  // Once: this process's own rows, and the others' as they arrive. some(first, rows): rows [first, ..) of all of them;
  // whole(rank, rows): after all rows of a rank.
  using Some = std::function<void(std::int64_t first, const Tensor& rows)>;
  using Whole = std::function<void(int rank, const Tensor& rows)>;
  void each(const Some& some, const Whole& whole);

 private:
  struct Message {
    int from;
    Tensor rows;
    std::vector<Work> pieces;
  };
  const ExecContext& ctx_;
  int rank_;
  Tensor own_;
  std::vector<Message> coming_;
};

// What the other processes add to this one's rows [n,C] of a sum over all. part(first, dst) computes what this process
// adds to rows [first, ..) of all: in the constructor for the rows of the others, which are sent meanwhile. terms:
// multiply-adds in each element of it.
class SumOfOthers {
 public:
  using Part = std::function<void(std::int64_t first, const Tensor& dst)>;
  SumOfOthers(const ExecContext&, Communicator& tp, const Shape& own, DType, std::int64_t terms, const Part& part);
  int left() const { return static_cast<int>(coming_.size() - next_); }
  // What the next one of them adds [n,C], once it is here. They come in an order that depends on the ranks alone.
  Tensor next();
  // y += what is left of them, + residual [n,C] or nothing.
  void add_to(const Tensor& y, const Tensor& residual = {});

 private:
  struct Message {
    Tensor sum;
    std::vector<Work> pieces;
  };
  const ExecContext& ctx_;
  std::vector<Message> coming_;
  std::size_t next_ = 0;
};

}  // namespace ring
