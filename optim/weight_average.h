#pragma once
// Exponential moving average of the weights (train.ema), in f32. Covers the weights that this process owns, so that
// ranks that shard their states average each weight only once. It follows the master values, which must be f32 and on
// the device.

#include "kernels/kernel.h"
#include "parallel/owned_shard.h"

namespace ring {

class WeightAverage {
 public:
  // Starts at the current values. The shard must outlive this object. Throws OutOfMemory.
  WeightAverage(double decay, const OwnedShard&, const ExecContext&);

  void start(const ExecContext&);  // restarts at the current values
  // Queues an update of the average; call after the optimizer's update. step: the StepState on the device; if its
  // `accepted` is 0, nothing changes.
  void update(const Tensor& step, const ExecContext&) const;
  // Swaps the values and the average, exactly and without allocating memory, so that the model computes with the
  // average; a second call swaps them back.
  void swap_values(const ExecContext&) const;

  const FlatBuffer& buffer() const { return average_; }
  std::size_t device_bytes() const { return average_.flat.bytes() + room_.bytes(); }

 private:
  double decay_;
  const OwnedShard& shard_;
  std::vector<UpdateRange> ranges_;
  FlatBuffer average_;
  Tensor room_;  // buffer for swapping
};

// Returns the device bytes of an average of this many elements.
std::uint64_t average_bytes(std::int64_t elements);

}  // namespace ring
