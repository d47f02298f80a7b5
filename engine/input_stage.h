#pragma once
// Copies the inputs of a step to the device on a separate stream, so that the copy overlaps with the previous step's
// computation. Alternates between two buffers.

#include <array>
#include <vector>

#include "core/tensor.h"
#include "data/loader.h"

namespace ring {

// Inputs of one step, over all micro-batches of this rank.
struct InputSizes {
  std::int64_t tokens;  // 0 if tokens are not copied here, but chunk by chunk
  std::int64_t sequences;
  std::int64_t corpora;  // number of corpora of a mixture; 0 if there is only one corpus
  bool packed;
};

// ids, targets: [tokens] i32. positions: [tokens] i32, for packed documents. For a mixture, sources: [sequences] i32,
// the corpus of each sequence, and source_targets: [corpora] f32, the number of targets from each corpus. Tensors that
// are not needed are undefined.
struct StepInputs {
  Tensor ids, targets, positions, sources, source_targets;
  StepInputs() = default;
  StepInputs(const InputSizes&, const Stream&);
};

class InputStage {
 public:
  InputStage(const InputSizes&, const Stream& compute);

  // Copies the batches to the device. The compute stream then copies them to the start of each tensor in `to`.
  void load(const std::vector<Batch>& batches, const StepInputs& to);

 private:
  // Returns the number of tokens.
  std::int64_t load_tokens(const std::vector<Batch>& batches, const StepInputs& from);
  void load_sources(const std::vector<Batch>& batches, const StepInputs& from);
  struct Slot {
    StepInputs inputs;
    Event consumed;  // recorded when the compute stream has read the inputs
  };
  Stream compute_, copy_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
};

}  // namespace ring
