#pragma once
// Block selection by importance during training (model/attention/importance/importance.h). Some steps first measure
// attention masses over every rank's first micro-batch, and some of these steps choose new blocks from the earlier
// measurements. A measurement is sent to all ranks while the following steps run, and is used before the next
// measurement, so no step waits for it.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/mesh/mesh.h"
#include "kernels/kernel.h"
#include "model/attention/importance/importance.h"
#include "model/model.h"
#include "model/training_state.h"

namespace ring {

class BlockImportanceTracker : public TrainingState {
 public:
  // patterns: one per layer, for all heads. The model must outlive this object.
  BlockImportanceTracker(Model&, const std::vector<Pattern>& patterns);
  ~BlockImportanceTracker() override;  // waits for a measurement in flight

  // Returns one entry for each layer that keeps blocks by importance.
  std::span<BlockImportance> layers() { return layers_; }
  // Makes the layers keep the blocks that layers() holds, from the next forward on.
  void apply_choices();

  void on_patterns_set() override { apply_choices(); }
  void attach(const StepAccess&) override;
  // If this step measures: first adds the last measurement to the averages, and chooses new blocks if they are due.
  // Throws Error if another rank has chosen different blocks.
  bool before_step(std::int64_t step) override;
  const char* prefix() const override;
  void add_to(State&) override;
  void prepare_for_copy(const Stream& copies) override;
  void begin(const std::vector<std::string>& missing) override;
  bool on_state_loaded() override;
  std::string missing_text() const override;
  std::string unexpected_text() const override;
  // Loads the distances that both models have: a model with a different context has more or fewer. Skips layers whose
  // block size differs, because distances count blocks.
  std::string load(const std::string& checkpoint, const Manifest&, const ModelConfig& saved) override;
  // Throws Error if a layer that keeps blocks by importance before and after has a different block size.
  void check_resume(const ModelConfig& before, const std::string& run) const override;

 private:
  // A measurement in flight, in messages_.
  struct Measurement {
    std::int64_t step;
    Work work;
  };
  std::vector<Tensor> distance_masses();
  void measure(std::int64_t step);
  void finish_measurement();
  void wait_for_copies();
  void check_choices(const std::vector<float>& messages) const;
  MeasuredMass sum_over_ranks(const std::vector<float>& messages, std::size_t layer) const;
  std::size_t message() const { return static_cast<std::size_t>(own_.numel()); }  // f32 elements per rank
  // Returns the number of groups into which the ranks divide the KV heads. The ranks of tp divide the heads. Within a
  // tp slice, the ranks of cp divide either the heads or the queries; if they divide the queries, their masses are
  // summed.
  std::int64_t slices() const { return std::int64_t{step_->mesh.degree("tp")} * step_->cp_of_heads; }
  std::int64_t slice_of(int rank) const;

  Model& model_;
  std::vector<BlockImportance> layers_;
  std::optional<StepAccess> step_;  // nullopt without a run, or if no layer keeps blocks by importance
  // f32. own_: each layer's masses for this rank's heads, then kDigits
  // numbers with a hash of the kept blocks. messages_: own_ of all ranks.
  Tensor own_, messages_;
  std::vector<std::size_t> first_;  // each layer's offset in a message
  std::optional<Stream> arrivals_;  // set if step_ is set
  std::optional<Measurement> in_flight_;
  std::optional<Stream> copies_;
  std::int64_t measured_ = 0;  // the last step that measured; a step repeated after a bad one does not measure again
};

}  // namespace ring
