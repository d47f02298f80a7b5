#pragma once
// Sums gradients over the ranks while backward still runs. Once all parameters of the next bucket are complete, its
// asynchronous reduction starts; buckets start in their given order, the same on every rank. The loss is already scaled
// by 1 / (valid tokens of all ranks), so that the sum is the gradient.
//
// One optimizer step: any number of micro-batches, the last with Tape(final_pass = true), then finish(). Between the
// start of that last backward and finish() nothing else may use the communicator.

#include <vector>

#include "comm/communicator.h"
#include "parallel/bucket.h"

namespace ring {

class Reducer {
 public:
  // Installs on_ready in every slot. compute: the stream on which gradients are written.
  Reducer(Communicator& comm, Stream compute, std::vector<Bucket> buckets, const GradientTravel& travel = {});
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Zeroes gradients that were not written, reduces the remaining buckets, and makes the compute stream wait for all
  // reductions. Afterwards every slot is `written`, and the reducer is ready for the next step. Throws Error on a lost
  // peer or a timeout.
  void finish();

  int buckets() const { return static_cast<int>(buckets_.size()); }
  int started() const { return next_; }           // buckets whose reduction has started in this step
  int overlapped() const { return overlapped_; }  // buckets of the last finished step that started before finish()
  double wait_seconds() const { return wait_seconds_; }  // host time in finish() of the last finished step

 private:
  void on_ready(std::size_t bucket, std::size_t index);
  void start_next();
  void reset();

  Communicator& comm_;
  ExecContext compute_;
  GradientTravel travel_;
  std::vector<Bucket> buckets_;
  std::vector<std::vector<bool>> ready_;
  std::vector<std::size_t> missing_;  // number of incomplete slots of each bucket
  std::vector<GradientSum> sums_;
  int next_ = 0;
  int overlapped_ = 0;
  double wait_seconds_ = 0;
};

}  // namespace ring
