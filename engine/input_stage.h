#pragma once
// The data of a step on their way to the device, on a stream of their own: the copy for one step overlaps with the
// computation of the step before. Two buffers take turns.

#include <array>
#include <vector>

#include "core/tensor.h"
#include "data/loader.h"

namespace ring {

// What a step reads, over all micro-batches of this rank: [tokens] i32 each. positions: of packed documents, else
// undefined.
struct StepInputs {
  Tensor ids, targets, positions;
  StepInputs() = default;
  StepInputs(std::int64_t tokens, bool packed, const Stream&);
};

class InputStage {
 public:
  InputStage(std::int64_t tokens, bool packed, const Stream& compute);

  // Copies the batches to the device, and from there to the beginning of `to` in the order of the compute stream.
  void load(const std::vector<Batch>& batches, const StepInputs& to);

 private:
  struct Slot {
    StepInputs inputs;
    Event consumed;  // the compute stream has read it
  };
  Stream compute_, copy_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
};

}  // namespace ring
