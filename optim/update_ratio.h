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
  // Parts, shard and `counted_here` are the same as for PartNorms. Throws OutOfMemory or OutOfHostMemory.
  UpdateRatios(const OwnedShard&, const Model&, bool counted_here, const ExecContext&);

  // Call before_update() and after_update() around a queued update. Values that may be in host memory are not compared.
  void before_update(const ExecContext&) const;
  // Queues sums over the ranges that this process counts. Returns them, f32 [2,parts]: the sums of the squared changes,
  // then the sums of the squared old values.
  const Tensor& after_update(const ExecContext&) const;

  // Returns the device bytes for a process that owns this many elements.
  static std::size_t device_bytes(std::int64_t elements, DType values);

 private:
  Tensor to_f32(const Tensor& values, const Tensor& buffer, const ExecContext&) const;
  void measure_range(const CountedRange&, const ExecContext&) const;

  const OwnedShard& shard_;
  std::vector<CountedRange> ranges_;
  FlatBuffer old_;            // values before the update, on the host
  Tensor old_chunk_;          // a chunk of old_ on the device
  Tensor old_f32_, new_f32_;  // buffers for a chunk in f32; undefined if the values are f32
  Tensor squares_;
};

}  // namespace ring
