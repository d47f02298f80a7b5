// Block selection by importance as a variant of attention. Layers have no part of their own: one state serves all.
#include "model/attention/importance/block_importance_tracker.h"
#include "model/attention_variant.h"

namespace ring {

const AttentionVariantKind& importance_variant() {
  static const AttentionVariantKind kind{
      .make_state = [](Model& model, const std::vector<Pattern>& patterns) -> std::unique_ptr<TrainingState> {
        return std::make_unique<BlockImportanceTracker>(model, patterns);
      }};
  return kind;
}

}  // namespace ring
