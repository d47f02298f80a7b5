#pragma once
// Blocks by importance while a run trains (model/attention/importance.h): some steps measure masses over every rank's
// first micro-batch, and some of these choose other blocks, by what was measured before. What one measures travels to
// all ranks beside the steps that follow, and is taken ahead of the next one that measures: no step waits for it.

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/state.h"
#include "engine/train_step.h"
#include "model/attention/importance.h"

namespace ring {

class ImportantBlocks {
 public:
  ImportantBlocks(TrainStep& step, Mesh& mesh);
  ~ImportantBlocks();  // waits for what is on its way
  ImportantBlocks(const ImportantBlocks&) = delete;
  ImportantBlocks& operator=(const ImportantBlocks&) = delete;

  // On all ranks, ahead of this step (the first is 1), which was loaded. True: the layers keep other blocks from this
  // step on. Error: another rank has chosen others.
  bool before(std::int64_t step);
  void add_state(State&);
  // Its tensors are to be copied, or written, on `copies`: they have all that was measured, and change again behind it.
  void settle_for(const Stream& copies);
  void begin(const std::vector<std::string>& missing);  // the state was loaded, but for these, as in a new run
  void restored();                                      // the state was loaded

 private:
  // One measurement on its way, in messages_.
  struct Travelling {
    std::int64_t step;
    Work work;
  };
  void measure(std::int64_t step);
  void settle();
  void await_copies();
  void check_choices(const std::vector<float>& messages) const;
  MeasuredMass sum_over_ranks(const std::vector<float>& messages, std::size_t layer) const;
  std::size_t message() const { return static_cast<std::size_t>(own_.numel()); }  // numbers of a rank
  // The heads are shared by the ranks of tp and, within such a slice of the model, by those of cp, or these share the
  // queries, and their masses are summed.
  std::int64_t slices() const { return std::int64_t{mesh_.degree("tp")} * step_.plan().cp_of_heads(); }
  std::int64_t slice_of(int rank) const;

  TrainStep& step_;
  Mesh& mesh_;
  // f32: each layer's masses of this rank's heads and, in the last kDigits, what the layers keep; of all ranks.
  Tensor own_, messages_;
  std::vector<std::size_t> first_;  // of each layer in a message
  Stream arrivals_;
  std::optional<Travelling> travelling_;
  std::optional<Stream> copies_;
  std::int64_t measured_ = 0;  // the last step that did: one that is taken again after a bad one measures no more
};

// The tensors of a model's importance, by the prefix that such names have in checkpoints.
inline constexpr const char* kImportancePrefix = "importance.";
void add_importance(State&, Model&);
// What a run with such a model adds to its state.
std::set<std::string> importance_of(const ModelConfig&);
// Error, which names the key: a layer of the run keeps blocks by importance before and now, and these have another size
// now, by which its averages cannot go on.
void check_sizes_of_important_blocks(const ModelConfig& before, const ModelConfig& now, const std::string& run);
// Reads them from a checkpoint that has them, and keeps what they say: also of a model whose context is another one.
// Returns of how many layers they are left, since distances there are in blocks of another size.
std::int64_t load_importance(Model&, const std::string& checkpoint);

}  // namespace ring
