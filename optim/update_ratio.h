#pragma once
// How far an update moves the weights of each part of the model, beside how large they are (train.watch_interval).

#include <vector>

#include "model/model.h"
#include "optim/gradient_norm.h"

namespace ring {

// Whatever the optimizer does, its values before are kept, in host memory, and compared chunk by chunk with those
// after.
class UpdateRatios {
 public:
  // The parts are those of PartNorms, as are counts and the shard. OutOfMemory, OutOfHostMemory.
  UpdateRatios(const OwnedShard&, const Model&, bool counts, const ExecContext&);

  // Around an update that is queued between them. Values that may live on the host are not compared.
  void before(const ExecContext&) const;
  // Queues the sums over what this process counts: [2,parts] f32, squares of the changes, then of the values before.
  const Tensor& after(const ExecContext&) const;

  // What it takes of the device, where a process owns so many elements.
  static std::size_t device_bytes(std::int64_t elements, DType values);

 private:
  Tensor in_f32(const Tensor& values, const Tensor& room, const ExecContext&) const;
  void compare(const CountedRange&, const ExecContext&) const;

  const OwnedShard& shard_;
  std::vector<CountedRange> ranges_;
  FlatBuffer old_;                  // on the host
  Tensor raw_, room_, other_room_;  // of a chunk: in the type of the values, and in f32
  Tensor squares_;
};

}  // namespace ring
