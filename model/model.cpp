#include "model/model.h"

#include <algorithm>
#include <set>
#include <utility>

#include "comm/communicator.h"
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

void Model::hold_stage(PipelineStage stage) {
  const std::vector<ModelPart> all = parts();
  const std::int64_t blocks =
      std::ranges::count_if(all, [](const ModelPart& part) { return part.scope.is_repeated(); });
  for (Param* p : params_.declared()) p->held = false;
  std::set<const Param*> known;
  bool behind = false;  // true for the parts after the blocks
  for (const ModelPart& part : all) {
    behind |= part.scope.is_repeated();
    const bool holds = std::ranges::any_of(stage.parts, [&](const BlockRange& own) {
      if (part.scope.is_repeated()) return own.first <= part.scope.number && part.scope.number < own.end;
      return behind ? own.end == blocks : own.first == 0;
    });
    for (Param* p : part.params) {
      p->held = holds;
      if (!known.insert(p).second)
        fail(p->parts[0].name, " belongs to several parts of the model, which cannot be on different pipeline stages. ",
             "Set model.tied_embeddings: false, or parallel.pp: 1");
    }
  }
  stage_ = std::move(stage);
}

Var Model::run_part(Run&, const BlockRange&, const Var&, const Tensor&, const Sequences&) const {
  fail("this architecture cannot be divided into pipeline stages. Set parallel.pp: 1");
}

LossOutput Model::head_loss(Run&, const Var&, LossHead) const {
  fail("this architecture cannot be divided into pipeline stages. Set parallel.pp: 1");
}

// Hidden states have the type of the weights.
Tensor Model::empty_input(const ExecContext& ctx, std::int64_t first, std::int64_t tokens) const {
  for (const ModelPart& part : parts())
    if (part.scope.number == first)
      return ctx.empty({tokens / params_.slice().size, config().width}, part.params.front()->var.value.dtype());
  fail("the model has no block ", first);
}

Var Model::run_stage(Run& run, const Tensor& ids, const Sequences& seqs) const {
  Communicator& stages = *stage_.stages;
  const int last = stages.size() - 1, before = stages.rank() == 0 ? last : stages.rank() - 1,
            after = stages.rank() == last ? 0 : stages.rank() + 1;
  Var x;
  for (const BlockRange& part : stage_.parts) {
    x = {};
    if (part.first > 0) {
      x.value = empty_input(run.ctx, part.first, ids.dim(0));
      stages.recv(x.value, before, run.ctx.stream.record()).wait(run.ctx.stream);
    }
    x = run_part(run, part, x, ids, seqs);
    const bool ends = has_head() && &part == &stage_.parts.back();
    if (ends) return x;
    stages.send(x.value, after, run.ctx.stream.record()).wait(run.ctx.stream);
  }
  return {};
}

std::vector<TrainingState*> Model::training_states() {
  TrainingState* const state = linear_format_ ? linear_format_->state() : nullptr;
  return state ? std::vector{state} : std::vector<TrainingState*>{};
}

std::vector<const MixerLayer*> Model::mixers() const {
  const std::vector<AttentionLayer*> all = const_cast<Model*>(this)->attention_layers();  // changes nothing
  return {all.begin(), all.end()};
}

KvCache Model::make_cache(std::int64_t batch, std::int64_t capacity, const ExecContext& ctx, KvCacheType type) const {
  KvCache cache{
      .layers = {}, .lengths = std::vector<std::int32_t>(static_cast<std::size_t>(batch), 0), .capacity = capacity};
  const std::vector<const MixerLayer*> layers = mixers();
  RING_CHECK(!layers.empty(), "this model has no attention layers, so it has no KV cache");
  for (const MixerLayer* layer : layers)
    cache.layers.push_back(layer->make_cache(batch, capacity, cache.layers, ctx, type));
  return cache;
}

namespace {

std::string missing_adapters(std::int64_t matrices, std::int64_t) {
  return str("the weights have no adapters for some layers (", matrices,
             " matrices, model.lora). The adapters start at 0 and learn in this run");
}

std::string unexpected_adapters(std::int64_t matrices) {
  return str("the weights have adapters (", matrices, " matrices, model.lora) that this run does not use");
}

}  // namespace

std::vector<LaterWeights> Model::later_weights() {
  std::vector<LaterWeights> all = {{{}, missing_adapters, unexpected_adapters}};
  for (Param* p : params_.declared())
    if (p->adapter) all[0].params += {p};
  for (const AttentionVariantKind* kind : attention_variants()) {
    if (!kind->missing) continue;
    all.push_back({{}, kind->missing, kind->unexpected});
    for (const AttentionLayer* layer : attention_layers()) all.back().params += layer->parameters_of(*kind);
  }
  return all;
}

}  // namespace ring
