#pragma once
// Blocks by importance while a run trains (model/attention/importance.h): some steps measure masses over every rank's
// first micro-batch, and some of these choose other blocks.

#include "checkpoint/state.h"
#include "engine/train_step.h"

namespace ring {

class ImportantBlocks {
 public:
  ImportantBlocks(TrainStep& step, Mesh& mesh) : step_(step), mesh_(mesh) {}

  // On all ranks, ahead of this step (the first is 1), which was loaded. Where it measures, the host waits for what is
  // queued and for the other ranks; where it chose, the layers keep other blocks from this step on. True: they do.
  bool before(std::int64_t step);
  void add_state(State&);
  void restored() { step_.model().take_important_blocks(); }  // the state was loaded

 private:
  MeasuredMass sum_over_ranks(const BlockImportance&, const Tensor& own) const;

  TrainStep& step_;
  Mesh& mesh_;
  std::int64_t measured_ = 0;  // the last step that did: one that is taken again after a bad one measures no more
};

// The tensors of a model's importance, by the prefix that such names have in checkpoints.
inline constexpr const char* kImportancePrefix = "importance.";
void add_importance(State&, Decoder&);
// Reads them from a checkpoint that has them, and keeps what they say: also of a model whose context is another one.
void load_importance(Decoder&, const std::string& checkpoint);

}  // namespace ring
