#include "model/model.h"

#include "model/attention_layer.h"

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

std::vector<const AttentionLayer*> Model::attention_layers() const {
  const std::vector<AttentionLayer*> all = const_cast<Model*>(this)->attention_layers();  // which changes nothing
  return {all.begin(), all.end()};
}

std::vector<LaterWeights> Model::later_weights() {
  std::vector<LaterWeights> all;
  for (const AttentionVariantKind* kind : attention_variants()) {
    if (!kind->missing) continue;
    all.push_back({{}, kind->missing, kind->unexpected});
    for (const AttentionLayer* layer : attention_layers()) all.back().params += layer->parameters_of(*kind);
  }
  return all;
}

}  // namespace ring
