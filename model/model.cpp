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

KvCache Model::make_cache(std::int64_t batch, std::int64_t capacity, const ExecContext& ctx, KvCacheType type) const {
  KvCache cache{
      .layers = {}, .lengths = std::vector<std::int32_t>(static_cast<std::size_t>(batch), 0), .capacity = capacity};
  const std::vector<AttentionLayer*> attention = const_cast<Model*>(this)->attention_layers();  // changes nothing
  RING_CHECK(!attention.empty(), "this model has no attention layers, so it has no KV cache");
  for (const AttentionLayer* layer : attention)
    cache.layers.push_back(layer->make_cache(batch, capacity, cache.layers, ctx, type));
  return cache;
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
