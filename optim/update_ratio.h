#pragma once
// Size of an update relative to the weights, for each part of the model (train.diagnostics_interval).

#include <vector>

#include "model/model.h"
#include "optim/gradient_norm.h"

namespace ring {

// Copies the values to host memory before an update, and compares them chunk by chunk with those after it, whatever the
// optimizer does.
class UpdateRatios {
 public:
  // The parts are those of PartNorms, as are `counts` and the shard. Throws OutOfMemory, OutOfHostMemory.
  UpdateRatios(const OwnedShard&, const Model&, bool counts, const ExecContext&);

  // Call before_update() and after_update() around a queued update. Values that may be on the host are not compared.
  void before_update(const ExecContext&) const;
  // Queues the sums of the ranges that this process counts, and returns them: [2,parts] f32, squares of the changes,
  // then of the values before.
  const Tensor& after_update(const ExecContext&) const;

  // Returns the device bytes for a process that owns this many elements.
  static std::size_t device_bytes(std::int64_t elements, DType values);

 private:
  Tensor in_f32(const Tensor& values, const Tensor& room, const ExecContext&) const;
  void compare(const CountedRange&, const ExecContext&) const;

  const OwnedShard& shard_;
  std::vector<CountedRange> ranges_;
  FlatBuffer old_;                  // values before the update, on the host
  Tensor raw_, room_, other_room_;  // a chunk in the values' type, and two in f32
  Tensor squares_;
};

}  // namespace ring
