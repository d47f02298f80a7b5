#pragma once
// Token ids on their way to the device, on a stream of their own: the copy of one step's ids overlaps with the
// computation of the step before. Two buffers take turns.

#include <array>
#include <vector>

#include "core/tensor.h"
#include "data/loader.h"

namespace ring {

class InputStage {
 public:
  // `tokens` per step, over all micro-batches of this rank.
  InputStage(std::int64_t tokens, const Stream& compute);

  // Copies the batches' ids and targets to the device, and from there into `ids` and `targets` [tokens] i32 in the
  // order of the compute stream.
  void load(const std::vector<Batch>& batches, const Tensor& ids, const Tensor& targets);

 private:
  struct Slot {
    Tensor ids, targets;
    Event consumed;  // the compute stream has read it
  };
  Stream compute_, copy_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
};

}  // namespace ring
