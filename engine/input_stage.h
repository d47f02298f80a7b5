#pragma once
// The data of a step on their way to the device, on a stream of their own: the copy for one step overlaps with the
// computation of the step before. Two buffers take turns.

#include <array>
#include <vector>

#include "core/tensor.h"
#include "data/loader.h"

namespace ring {

// How much a step reads, over all micro-batches of this rank.
struct InputSizes {
  std::int64_t tokens, sequences;
  std::int64_t corpora;  // of a mixture; 0: one
  bool packed;
};

// [tokens] i32 each. positions: of packed documents; the others of a mixture: [sequences] i32 from which corpus,
// [corpora] f32 how many targets of each; else undefined.
struct StepInputs {
  Tensor ids, targets, positions, sources, source_targets;
  StepInputs() = default;
  StepInputs(const InputSizes&, const Stream&);
};

class InputStage {
 public:
  InputStage(const InputSizes&, const Stream& compute);

  // Copies the batches to the device, and from there to the beginning of `to` in the order of the compute stream.
  void load(const std::vector<Batch>& batches, const StepInputs& to);

 private:
  void load_sources(const std::vector<Batch>& batches, const StepInputs& from);
  struct Slot {
    StepInputs inputs;
    Event consumed;  // the compute stream has read it
  };
  Stream compute_, copy_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
};

}  // namespace ring
