#include "model/model.h"

#include "model/layers.h"

namespace ring {

void Model::allocate(const ExecContext& ctx, std::uint64_t seed, const ParamTypes& types) {
  params_.allocate(ctx, seed, types);
  allocate_constants(ctx);
}

void Model::shard(Slice slice) {
  if (slice.size == 1) return;
  params_.shard(slice);
  on_shard();
}

std::vector<TrainingState*> Model::training_states() {
  TrainingState* const state = linear_format_ ? linear_format_->state() : nullptr;
  return state ? std::vector{state} : std::vector<TrainingState*>{};
}

std::vector<LaterWeights> Model::later_weights() {
  std::vector<LaterWeights> all;
  for (const AttentionLayer* layer : attention_layers()) {
    std::vector<LaterWeights> own = layer->later_weights();
    for (std::size_t kind = 0; kind < all.size(); ++kind) all[kind].params += own[kind].params;
    if (all.empty()) all = std::move(own);
  }
  return all;
}

}  // namespace ring
