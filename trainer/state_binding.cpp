#include "trainer/state_binding.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "checkpoint/fp8_tensors.h"
#include "checkpoint/reader.h"
#include "core/log.h"
#include "engine/origin.h"
#include "evaluate/session.h"
#include "kernels/elementwise.h"
#include "model/architectures.h"
#include "optim/groups.h"

namespace ring {
namespace {

using Names = std::set<std::string>;

constexpr const char* kResidualsPrefix = "residuals.";

std::string residuals_prefix(int replica) { return str(kResidualsPrefix, replica, "."); }

// The model that the settings in a checkpoint's metadata declare.
struct SavedModel {
  explicit SavedModel(const std::string& metadata) : config(settings_in(metadata, "the checkpoint")) {
    bind_linears(*model, linears_of(config.train), 1);
  }
  Config config;
  std::unique_ptr<Model> model = make_model(config.model);
};

Names names_of(const ParamList& params, const char* prefix) {
  Names names;
  for (const Param* p : params)
    for (const LogicalParam& part : p->parts) names.insert(prefix + part.name);
  return names;
}

Names later_weights_of(Model& model) {
  Names names;
  for (const LaterWeights& later : model.later_weights()) names.merge(names_of(later.params, kWeightsPrefix));
  return names;
}

// Returns the names of the weights that a checkpoint with this metadata must have: those of `model`, but with the later
// weights (Model::later_weights()) of the checkpoint's own model.
Names weights_in(const std::string& metadata, Model& model) {
  const Names here = later_weights_of(model);
  Names names = names_of(model.parameters().whole_layout(), kWeightsPrefix);
  std::erase_if(names, [&](const std::string& name) { return here.contains(name); });
  names.merge(later_weights_of(*SavedModel(metadata).model));
  return names;
}

Names states_in(const std::string& metadata) {
  const SavedModel saved(metadata);
  Names names;
  for (const Param* p : saved.model->parameters().declared())
    for (const LogicalParam& part : p->parts)
      for (const std::string& state : saved_states(saved.config.optimizer, *p, part))
        names.insert(kOptimizerStatesPrefix + state);
  return names;
}

Names average_in(const std::string& metadata) {
  const SavedModel saved(metadata);
  return saved.config.train.ema > 0 ? names_of(saved.model->parameters().declared(), kAveragePrefix) : Names{};
}

Names training_state_in(const std::string& metadata, const std::string& prefix) {
  const SavedModel saved(metadata);
  State state;
  for (TrainingState* s : saved.model->training_states()) s->add_to(state);
  Names names;
  for (const auto& [name, tensor] : state.tensors()) names.insert(name);
  for (const auto& [name, value] : state.values()) names.insert(name);
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(prefix); });
  return names;
}

// Returns true if the checkpoint's weights differ from the model's only in weights that are allowed to differ.
bool only_optional_weights_differ(const WeightsReport& r, const std::string& metadata, Model& model) {
  if (r.complete() || !r.mismatched.empty() || r.matching.empty()) return false;
  const Names saved = weights_in(metadata, model);
  const auto has = [&](const std::string& name) { return saved.contains(name); };
  return std::ranges::none_of(r.missing, has) && std::ranges::all_of(r.unexpected, has);
}

}  // namespace

StateBinding::StateBinding(const Config& config, TrainStep& step, const std::int64_t& steps, OuterOptimizer* outer,
                           Mesh& mesh)
    : config_(config),
      step_(step),
      steps_(steps),
      has_outer_(outer != nullptr),
      islands_(config, step, steps_, outer, mesh),
      leads_(mesh.rank() == 0) {}

void StateBinding::add_weights(State& state) const {
  const OwnedShard& shard = step_.data().shard();
  add_parameters(state, kWeightsPrefix, step_.model().parameters(), shard.pieces, shard.values);
}

// Adds the optimizer states of every island; on this rank, only those of its own island have elements.
void StateBinding::add_optimizer_states(State& state) const {
  const Parameters& params = step_.model().parameters();
  for (int island = 0; island < islands_.islands(); ++island)
    for (const OptimizerState& s : step_.optimizer().states())
      add_parameters(
          state, IslandBinding::optimizer_prefix(island) + s.name + ".", params,
          island == islands_.island() ? s.pieces : std::vector<ShardPiece>(), s.buffer,
          [&](const Param& p, const LogicalParam& part) {
            return !part.frozen && optimizer_kind_of(config_.optimizer, p, part) == s.kind;
          },
          s.fp8 ? std::optional(CodeScales{*s.fp8, s.scales}) : std::nullopt);
}

void StateBinding::add_to(State& state) const {
  state.set_wait_for_writes([this](const Stream& s) {
    step_.optimizer().wait_for_copies(s);
    for (TrainingState* t : step_.model().training_states()) t->prepare_for_copy(s);
  });
  if (has_outer_)
    islands_.add_to(state);
  else
    add_weights(state);
  add_optimizer_states(state);
  if (step_.average())
    add_parameters(state, kAveragePrefix, step_.model().parameters(), step_.data().shard().pieces,
                   step_.average()->buffer());
  add_residuals(state);
  using Text = const std::string&;
  using Mismatch = const KeyMismatch&;
  state.allow_partial_load(kWeightsPrefix,
                           {[this](Text metadata) { return weights_in(metadata, step_.model()); },
                            [this](Mismatch a, Text metadata) { log_weight_mismatch(a, metadata, steps_); }});
  state.allow_partial_load(kOptimizerStatesPrefix, {states_in, [this](Mismatch a, Text) { log_state_mismatch(a); }});
  state.allow_partial_load(kAveragePrefix, {average_in, [this](Mismatch a, Text) { start_average(a); }});
  islands_.allow_other_islands(state);
  for (TrainingState* t : step_.model().training_states()) add_training_state(state, *t);
}

void StateBinding::load_weights(const std::string& checkpoint) const {
  State state;
  state.set_wait_for_writes([this](const Stream& s) { step_.optimizer().wait_for_copies(s); });
  add_weights(state);
  const Manifest manifest = read_manifest(checkpoint);
  const WeightsReport compared = compare_weights(manifest, state, kWeightsPrefix);
  const bool mismatch = only_optional_weights_differ(compared, manifest.metadata, step_.model());
  const ExecContext& ctx = step_.exec();
  ring::load_weights(checkpoint, state, kWeightsPrefix, ctx.stream, !mismatch);
  if (mismatch) log_weight_mismatch({compared.missing, compared.unexpected}, manifest.metadata, 0);
  for (const std::string& text : load_training_states(step_.model(), checkpoint))
    if (leads_) log::info(text);
  if (step_.average()) step_.average()->start(ctx);
  islands_.on_weights_loaded();
  step_.data().on_master_weights_changed();
}

void StateBinding::log_weight_mismatch(const KeyMismatch& mismatch, const std::string& metadata,
                                       std::int64_t steps) const {
  if (!leads_) return;
  const auto count = [](const std::vector<std::string>& names, const LaterWeights& later) {
    const Names all = names_of(later.params, kWeightsPrefix);
    return std::ranges::count_if(names, [&](const std::string& name) { return all.contains(name); });
  };
  for (const LaterWeights& later : step_.model().later_weights())
    if (const auto missing = count(mismatch.missing, later); missing > 0) log::info(later.missing(missing, steps));
  const SavedModel saved(metadata);
  for (const LaterWeights& later : saved.model->later_weights())
    if (const auto unexpected = count(mismatch.unexpected, later); unexpected > 0)
      log::info(later.unexpected(unexpected));
}

void StateBinding::log_state_mismatch(const KeyMismatch& mismatch) const {
  const auto count = [](const std::vector<std::string>& names) {
    return std::ranges::count_if(names, [](const std::string& name) { return !owner_of_scales(name); });
  };
  if (leads_)
    log::warn("the checkpoint lacks ", count(mismatch.missing), " optimizer states, which are reinitialized, and has ",
              count(mismatch.unexpected),
              " unused ones: its parameters, or how they were updated, differ from this run's");
}

// Called if the checkpoint's average does not match this run. If the average is missing, or lacks weights that are new
// in this run, starts it from the current weights. If this run uses no average, only logs this.
void StateBinding::start_average(const KeyMismatch& mismatch) const {
  if (!mismatch.missing.empty()) step_.average()->start(step_.exec());
  if (!leads_) return;
  if (!mismatch.missing.empty())
    log::info("train.ema: the checkpoint has no average of all weights, so the average starts from these weights");
  else if (!step_.average())
    log::info("train.ema: 0: the checkpoint's average of the weights is not used");
}

// Each replica has residuals of all parameters, named "residuals.<replica>.<parameter>". It does not matter which
// replica holds a residual (parallel/compressed_sum.h). If a checkpoint has more replicas than this run, which has n,
// replica r of this run adds the residuals of the checkpoint's replicas r + n, r + 2 n, .. to its own.
void StateBinding::add_residuals(State& state) const {
  DataParallel& data = step_.data();
  std::map<std::string, StateTensor> own;  // by parameter
  if (GradientCompressor* compressor = data.compressor(); compressor && compressor->has_residuals()) {
    const Parameters& params = step_.model().parameters();
    const std::vector<ShardPiece> whole = unsharded_plan(params);
    const auto has_gradient = [](const Param& p, const LogicalParam&) { return !p.is_frozen(); };
    for (int r = 0; r < data.replicas(); ++r) {
      State of_replica;
      const bool here = r == data.replica();
      const std::string prefix = residuals_prefix(r);
      add_parameters(of_replica, prefix, params, here ? whole : std::vector<ShardPiece>{},
                     {compressor->residuals(), true}, has_gradient);
      for (const auto& [name, tensor] : of_replica.tensors()) {
        if (here) own.emplace(name.substr(prefix.size()), tensor);
        state.add(tensor);
      }
    }
  }
  const auto absorb = [this, own](const std::string& name, const ReadRegion& read) {
    int replica = 0;
    const auto [dot, error] =
        std::from_chars(name.data() + std::string_view(kResidualsPrefix).size(), name.data() + name.size(), replica);
    if (error != std::errc() || replica % step_.data().replicas() != step_.data().replica()) return;
    const auto found = own.find(name.substr(std::min(name.size(), static_cast<std::size_t>(dot + 1 - name.data()))));
    if (found == own.end()) return;
    const StateTensor& to = found->second;
    if (to.local.numel() == 0) return;
    const ExecContext& ctx = step_.exec();
    const Tensor saved = read({to.start, to.local.shape()}), more = ctx.empty(saved.shape());
    ctx.stream.impl().copy(more.raw(), saved.raw(), saved.bytes());
    axpby_kernel({more, to.local, to.local, 1, 1}, ctx);
    ctx.stream.synchronize();  // allowed host wait: checkpoint
  };
  state.allow_partial_load(kResidualsPrefix,
                           {{},
                            [this, own](const KeyMismatch& m, const std::string&) {
                              for (const auto& [name, tensor] : own)  // a rollback may have left old ones
                                if (std::ranges::count(m.missing, tensor.name) > 0)
                                  fill_zero(tensor.local, step_.exec().stream);
                              log_residuals(m);
                            },
                            absorb});
}

void StateBinding::log_residuals(const KeyMismatch& mismatch) const {
  if (!leads_) return;
  const GradientCompressor* compressor = step_.data().compressor();
  if (!compressor || !compressor->has_residuals())
    log::warn("parallel.compress: the checkpoint's residuals of compressed gradients are dropped, because this run ",
              "sends gradients exactly");
  else if (!mismatch.unexpected.empty())
    log::info("parallel.compress: the residuals of replicas that no longer exist are added to those of the others");
  else
    log::info("parallel.compress: replicas without residuals in the checkpoint start with zero residuals");
}

void StateBinding::add_training_state(State& state, TrainingState& added) const {
  added.add_to(state);
  const auto saved = [prefix = added.prefix()](const std::string& metadata) {
    return training_state_in(metadata, prefix);
  };
  const auto begin = [&added, leads = leads_](const KeyMismatch& mismatch, const std::string&) {
    added.begin(mismatch.missing);
    if (!leads) return;
    if (!mismatch.missing.empty()) log::info(added.missing_text());
    if (!mismatch.unexpected.empty()) log::info(added.unexpected_text());
  };
  state.allow_partial_load(added.prefix(), {saved, begin});
}

}  // namespace ring
