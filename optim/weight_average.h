#pragma once
// An exponential moving average of the weights (train.ema): f32, of what this process owns of them, so that no number
// is averaged twice where ranks share their states. It follows the master values, which are f32 and on the device.

#include "kernels/kernel.h"
#include "parallel/owned_shard.h"

namespace ring {

class WeightAverage {
 public:
  // The shard outlives it. Starts at the values as they are. OutOfMemory.
  WeightAverage(double decay, const OwnedShard&, const ExecContext&);

  void start(const ExecContext&);  // at the values as they are now
  // Queued behind an update. step: the StepState on the device; where its `accepted` is 0 nothing changes.
  void update(const Tensor& step, const ExecContext&) const;
  // The values become the average and the average the values, bit by bit, in memory that is here already: to compute
  // with the average, until the next call.
  void exchange(const ExecContext&) const;

  const FlatBuffer& buffer() const { return average_; }
  std::size_t device_bytes() const { return average_.flat.bytes() + room_.bytes(); }

 private:
  double decay_;
  const OwnedShard& shard_;
  std::vector<UpdateRange> ranges_;
  FlatBuffer average_;
  Tensor room_;  // for what is on its way from one to the other
};

// Bytes of the device for so many elements.
std::uint64_t average_bytes(std::int64_t elements);

}  // namespace ring
