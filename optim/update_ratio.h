#pragma once
// Size of updates relative to the weights, for each part of the model (train.diagnostics_interval).

#include <vector>

#include "model/model.h"
#include "optim/gradient_norm.h"

namespace ring {

// Copies the values to host memory before an update, and compares them chunk by chunk with the values after the update.
// Works with any optimizer.
class UpdateRatios {
 public:
  // Parts, shard and `counts` are the same as for PartNorms. Throws OutOfMemory or OutOfHostMemory.
  UpdateRatios(const OwnedShard&, const Model&, bool counts, const ExecContext&);

  // Call before_update() and after_update() around a queued update. Values that may be in host memory are not compared.
  void before_update(const ExecContext&) const;
  // Queues the sums over the ranges that this process counts, and returns them: [2,parts] f32, first the squares of the
  // changes, then the squares of the old values.
  const Tensor& after_update(const ExecContext&) const;

  // Returns the device bytes for a process that owns this many elements.
  static std::size_t device_bytes(std::int64_t elements, DType values);

 private:
  Tensor in_f32(const Tensor& values, const Tensor& room, const ExecContext&) const;
  void compare(const CountedRange&, const ExecContext&) const;

  const OwnedShard& shard_;
  std::vector<CountedRange> ranges_;
  FlatBuffer old_;                  // values before the update, on the host
  Tensor raw_, room_, other_room_;  // a chunk in the values' type, and two buffers for a chunk in f32
  Tensor squares_;
};

}  // namespace ring
