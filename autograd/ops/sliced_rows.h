#pragma once
// Tensor-parallel communication of rows, overlapped with computation. This process's own rows need no message: they
// come first when rows are gathered, and last when sums are scattered, so that messages are in flight meanwhile. Every
// process sends to the others in the same order of rank distances.

#include <cstdint>
#include <functional>
#include <vector>

#include "autograd/tape.h"
#include "comm/communicator.h"

namespace ring {

// Returns a rank's rows of a tensor with the rows of all ranks.
Tensor rows_of(const Tensor& all, int rank, const Communicator& tp);

// Gathers own [n,C] of every process. terms: multiply-adds computed per gathered element; if few, messages are split in
// two.
class GatheredRows {
 public:
  GatheredRows(const ExecContext&, Communicator& tp, const Tensor& own, std::int64_t terms);
  // Visits this process's own rows, then the others' as they arrive. Call once. some(first, rows): called with rows
  // [first, ..) of all rows; whole(rank, rows): called after all rows of a rank.
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

// Receives the other processes' contributions to this one's rows [n,C] of a sum over all. The constructor calls
// part(first, dst) to compute this process's contribution to rows [first, ..) of the others, and sends each meanwhile.
// terms: multiply-adds per element of dst, as above.
class SumOfOthers {
 public:
  using Part = std::function<void(std::int64_t first, const Tensor& dst)>;
  SumOfOthers(const ExecContext&, Communicator& tp, const Shape& own, DType, std::int64_t terms, const Part& part);
  int left() const { return static_cast<int>(coming_.size() - next_); }
  // Waits for the next contribution and returns it, [n,C]. The order depends only on the ranks.
  Tensor next();
  // Adds the remaining contributions and residual [n,C], or none, to y.
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
