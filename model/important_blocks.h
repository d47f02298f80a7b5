#pragma once
// Blocks by importance while a run trains (model/attention/importance.h): some steps measure masses over every rank's
// first micro-batch, and some of these choose other blocks, by what was measured before. What one measures travels to
// all ranks beside the steps that follow, and is taken ahead of the next one that measures: no step waits for it.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/mesh/mesh.h"
#include "kernels/kernel.h"
#include "model/attention/importance.h"
#include "model/model.h"
#include "model/training_state.h"

namespace ring {

class ImportantBlocks : public TrainingState {
 public:
  // patterns: of all heads, by layer. The model outlives it.
  ImportantBlocks(Model&, const std::vector<Pattern>& patterns);
  ~ImportantBlocks() override;  // waits for what is on its way

  // Returns one for each layer that keeps blocks by importance.
  std::span<BlockImportance> layers() { return layers_; }
  // Makes the layers keep the blocks that layers() says now, from the next forward on.
  void apply();

  void attach(const StepAccess&) override;
  // Throws Error if another rank has chosen other blocks.
  bool before_step(std::int64_t step) override;
  const char* prefix() const override;
  void add_to(State&) override;
  void settle_for(const Stream& copies) override;
  void begin(const std::vector<std::string>& missing) override;
  bool restored() override;
  std::string missing_text() const override;
  std::string unexpected_text() const override;
  // A model of another context has more or fewer distances: the nearest ones are taken. Layers whose blocks had another
  // size stay as they are, since distances there are in such blocks.
  std::string load(const std::string& checkpoint, const Manifest&, const ModelConfig& saved) override;
  // A layer that kept blocks by importance and goes on with it needs blocks of the same size.
  void check_resume(const ModelConfig& before, const std::string& run) const override;

 private:
  // One measurement on its way, in messages_.
  struct Travelling {
    std::int64_t step;
    Work work;
  };
  std::vector<Tensor> distance_masses();
  void measure(std::int64_t step);
  void settle();
  void await_copies();
  void check_choices(const std::vector<float>& messages) const;
  MeasuredMass sum_over_ranks(const std::vector<float>& messages, std::size_t layer) const;
  std::size_t message() const { return static_cast<std::size_t>(own_.numel()); }  // numbers of a rank
  // The heads are shared by the ranks of tp and, within such a slice of the model, by those of cp, or these share the
  // queries, and their masses are summed.
  std::int64_t slices() const { return std::int64_t{step_->mesh.degree("tp")} * step_->cp_of_heads; }
  std::int64_t slice_of(int rank) const;

  Model& model_;
  std::vector<BlockImportance> layers_;
  std::optional<StepAccess> step_;  // none: no run, or no such layer
  // f32: each layer's masses of this rank's heads and, in the last kDigits, what the layers keep; of all ranks.
  Tensor own_, messages_;
  std::vector<std::size_t> first_;  // of each layer in a message
  std::optional<Stream> arrivals_;  // there is one where there is a step
  std::optional<Travelling> travelling_;
  std::optional<Stream> copies_;
  std::int64_t measured_ = 0;  // the last step that did: one that is taken again after a bad one measures no more
};

}  // namespace ring
