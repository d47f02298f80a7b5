#include "trainer/island_binding.h"

#include <algorithm>
#include <set>

#include "core/counted.h"
#include "core/host_tensor.h"
#include "core/joined.h"
#include "core/log.h"
#include "engine/origin.h"
#include "evaluate/session.h"
#include "model/architectures.h"
#include "optim/groups.h"

namespace ring {
namespace {

constexpr const char *kOuterPrefix = "outer.", *kMomentumPrefix = "outer.momentum.",
                     *kCombinedStep = "outer.combined_step";

std::string weights_prefix(int island) { return IslandBinding::prefix(island) + kWeightsPrefix; }
std::string residual_prefix(int island) { return IslandBinding::prefix(island) + "residual."; }

bool is_trained(const Param&, const LogicalParam& part) { return !part.frozen; }
bool is_frozen(const Param&, const LogicalParam& part) { return part.frozen; }

// Returns the names with this prefix (islands. or outer.) in a complete checkpoint with this metadata.
std::set<std::string> island_names_in(const std::string& metadata, const std::string& prefix) {
  const Config config = settings_in(metadata, "the checkpoint");
  const ParallelConfig& p = config.parallel;
  std::set<std::string> names;
  if (p.local_steps == 0) return names;
  names.insert(kCombinedStep);
  const std::unique_ptr<Model> model = make_model(config.model);
  bind_groups(config.optimizer, model->parameters());
  for (const Param* param : model->parameters().declared())
    for (const LogicalParam& part : param->parts) {
      if (part.frozen) continue;
      names.insert(kMomentumPrefix + part.name);
      for (int i = 0; i < static_cast<int>(p.islands); ++i) {
        names.insert(weights_prefix(i) + part.name);
        if (p.outer_bits < 32) names.insert(residual_prefix(i) + part.name);
        if (i > 0)
          for (const std::string& state : saved_states(config.optimizer, *param, part))
            names.insert(IslandBinding::optimizer_prefix(i) + state);
      }
    }
  for (int i = 1; i < static_cast<int>(p.islands); ++i) names.insert(IslandBinding::bad_steps_name(i));
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(prefix); });
  return names;
}

// Returns the islands whose weights are among the names.
std::set<int> islands_among(const std::vector<std::string>& names) {
  std::set<int> islands;
  for (const std::string& name : names) {
    const std::string rest = name.substr(std::string_view(IslandBinding::kPrefix).size());
    if (rest.find(std::string(".") + kWeightsPrefix) == rest.find('.')) islands.insert(std::stoi(rest));
  }
  return islands;
}

std::string islands_text(const std::set<int>& islands) {
  std::vector<std::string> numbers;
  for (const int i : islands) numbers.push_back(str(i));
  return str(islands.size() == 1 ? "island " : "islands ", joined(numbers, ", "));
}

}  // namespace

IslandBinding::IslandBinding(const Config& config, TrainStep& step, const std::int64_t& steps, OuterOptimizer* outer,
                             Mesh& mesh)
    : config_(config), step_(step), steps_(steps), outer_(outer), mesh_(mesh) {}

std::string IslandBinding::prefix(int island) { return str(kPrefix, island, "."); }

std::string IslandBinding::optimizer_prefix(int island) {
  return island == 0 ? kOptimizerStatesPrefix : prefix(island) + kOptimizerStatesPrefix;
}

std::string IslandBinding::bad_steps_name(int island) {
  return island == 0 ? "train.bad_steps" : prefix(island) + "bad_steps";
}

void IslandBinding::add_to(State& state) const {
  const Parameters& params = step_.model().parameters();
  const OwnedShard& shard = step_.data().shard();
  add_parameters(state, kWeightsPrefix, params, outer_->pieces(), outer_->theta(), is_trained);
  add_parameters(state, kWeightsPrefix, params, shard.pieces, shard.values, is_frozen);
  add_parameters(state, kMomentumPrefix, params, outer_->pieces(), outer_->momentum(), is_trained);
  state.add(kCombinedStep, &outer_->combined_step());
  for (int i = 0; i < islands(); ++i) {
    const bool own = i == island();
    add_parameters(state, weights_prefix(i), params, own ? shard.pieces : std::vector<ShardPiece>(), shard.values,
                   is_trained);
    if (outer_->quantizes())
      add_parameters(state, residual_prefix(i), params, own ? outer_->pieces() : std::vector<ShardPiece>(),
                     outer_->residual(), is_trained);
  }
}

void IslandBinding::allow_other_islands(State& state) const {
  for (const char* prefix : {IslandBinding::kPrefix, kOuterPrefix})
    state.allow_partial_load(prefix,
                             {[prefix](const std::string& metadata) { return island_names_in(metadata, prefix); },
                              [this, prefix](const KeyMismatch& mismatch, const std::string&) {
                                if (prefix == std::string_view(IslandBinding::kPrefix)) start_islands(mismatch);
                              }});
  state.allow_partial_load(kCombinedStep, {nullptr, [this](const KeyMismatch& mismatch, const std::string& metadata) {
                                             if (!mismatch.missing.empty()) infer_combined_step(metadata);
                                           }});
}

// Infers outer.combined_step if the loaded checkpoint does not contain it. A checkpoint is saved before fragments that
// are due after its step are combined. Only after the last step of a run are they combined first.
void IslandBinding::infer_combined_step(const std::string& metadata) const {
  outer_->combined_step() = settings_in(metadata, "the checkpoint").train.steps == steps_ ? steps_ : 0;
}

// Logs how the checkpoint's islands differ from those of this run, and initializes islands that the checkpoint lacks.
void IslandBinding::start_islands(const KeyMismatch& mismatch) const {
  const std::set<int> fresh = islands_among(mismatch.missing), unused = islands_among(mismatch.unexpected);
  if (mesh_.rank() == 0 && !unused.empty())
    log::info("parallel.islands: ", islands(), ": the checkpoint's ", islands_text(unused),
              unused.size() == 1 ? " is" : " are", " not part of this run. What ",
              unused.size() == 1 ? "it has" : "they have", " learned since the last exchange of weights is lost");
  if (!outer_ || fresh.empty()) return;
  if (mesh_.rank() == 0)
    log::info("parallel.islands: ", islands(), ": the checkpoint has no ", islands_text(fresh), ", which ",
              fresh.size() == 1 ? "starts" : "start", " from the checkpoint's outer weights",
              islands() > 1 ? " and the optimizer states of island 0" : "");
  const bool is_new = fresh.contains(island());
  if (is_new) outer_->take_theta(step_.exec());
  copy_states_of_island_0(is_new);
}

// Collective over the islands. Ranks of existing islands other than 0 receive the states into scratch memory.
void IslandBinding::copy_states_of_island_0(bool is_new) const {
  if (islands() == 1) return;
  const ExecContext& ctx = step_.exec();
  for (const OptimizerState& s : step_.optimizer().states())
    for (const Tensor& t : {s.buffer.flat, s.scales}) {
      if (!t.defined() || t.numel() == 0) continue;
      const bool on_host = t.device().backend == Backend::cpu, keeps = is_new || island() == 0;
      Communicator& group = on_host ? mesh_.host_group({"island"}) : mesh_.axis("island");
      const Tensor to = keeps     ? t
                        : on_host ? host_tensor(t.shape(), t.dtype(), ctx.stream)
                                  : ctx.empty(t.shape(), t.dtype(), Lifetime::run);
      group.broadcast(to, 0, ctx.stream.record()).synchronize();  // allowed host wait: start
    }
}

void IslandBinding::on_weights_loaded() const {
  if (outer_) outer_->start(step_.exec());
}

}  // namespace ring
