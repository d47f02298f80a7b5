#include "model/attention/importance/block_importance_tracker.h"

#include <algorithm>
#include <array>
#include <utility>

#include "checkpoint/reader.h"
#include "core/copy_stream.h"
#include "core/counted.h"
#include "core/fields.h"
#include "core/host_tensor.h"
#include "kernels/attention/importance/distance_mass.h"
#include "kernels/elementwise.h"
#include "model/attention/kinds.h"
#include "model/attention_layer.h"
#include "model/patterns.h"

namespace ring {
namespace {

constexpr const char* kPrefix = "importance.";
constexpr const char* kAverages = "averages";
constexpr const char* kScores = "scores";
constexpr const char* kMeasured = "importance.measured";

std::string name_of(std::int64_t layer, const char* what) { return str(kPrefix, "blocks.", layer, ".", what); }

// Hashes the blocks that the layers keep, and splits the hash into 16-bit digits, which f32 represents exactly.
constexpr std::int64_t kDigits = 4;
std::array<float, kDigits> digits_of(std::span<const BlockImportance> layers) {
  std::uint64_t hash = kHashOfNothing;
  for (const BlockImportance& i : layers)
    hash = hash_text({reinterpret_cast<const char*>(i.scores().raw()), i.scores().bytes()}, hash);
  std::array<float, kDigits> digits;
  for (float& d : digits) d = static_cast<float>(hash & 0xffff), hash >>= 16;
  return digits;
}

// Returns the tokens per block of each layer.
std::vector<std::int64_t> blocks_of(const ModelConfig& model) {
  const ModelConfig c = model.resolved();
  std::vector<std::int64_t> blocks;
  for (const AttentionConfig* a : attentions_of(c)) blocks.push_back(block_size_of(*a));
  return blocks;
}

// Layers whose attention is watched. The destructor ends this, also after an exception.
struct WatchedLayers {
  std::vector<AttentionLayer*> layers;
  ~WatchedLayers() {
    for (AttentionLayer* layer : layers) layer->watch = nullptr;
  }
};

}  // namespace

BlockImportanceTracker::BlockImportanceTracker(Model& model, const std::vector<Pattern>& patterns) : model_(model) {
  const ModelConfig& c = model.config();
  const std::vector<const AttentionConfig*> attentions = attentions_of(c);
  for (std::size_t i = 0; i < patterns.size(); ++i)
    if (uses_importance(*attentions[i], c.kv_heads))
      layers_.emplace_back(*attentions[i], patterns[i], ModelSizes{c.kv_heads, c.context},
                           static_cast<std::int64_t>(i));
}

BlockImportanceTracker::~BlockImportanceTracker() {
  try {
    if (in_flight_) in_flight_->work.wait(*arrivals_);
  } catch (const Error&) {  // the error that ended the run was already reported
  }
}

void BlockImportanceTracker::attach(const StepAccess& step) {
  if (layers_.empty()) return;
  step_.emplace(step);
  arrivals_ = copy_stream(step.ctx.stream);
  std::int64_t numbers = 0;
  for (const BlockImportance& i : layers_) {
    first_.push_back(static_cast<std::size_t>(numbers));
    numbers += 2 * i.averages().numel() / slices();
  }
  own_ = step.ctx.empty({numbers + kDigits}, DType::f32, Lifetime::run);
  messages_ = step.ctx.empty({own_.numel() * step.mesh.world()}, DType::f32, Lifetime::run);
}

void BlockImportanceTracker::apply_choices() {
  const Slice& slice = model_.parameters().slice();
  const std::int64_t kv_heads = model_.config().kv_heads / slice.size;
  const std::vector<AttentionLayer*> attentions = model_.attention_layers();
  for (const BlockImportance& i : layers_)
    attentions[static_cast<std::size_t>(i.layer())]->set_blocks(
        of_heads(i.pattern(), {slice.rank * kv_heads, kv_heads}));
}

const char* BlockImportanceTracker::prefix() const { return kPrefix; }

void BlockImportanceTracker::add_to(State& state) {
  for (const BlockImportance& i : layers_) {
    state.add(name_of(i.layer(), kAverages), i.averages());
    state.add(name_of(i.layer(), kScores), i.scores());
  }
  if (!layers_.empty()) state.add(kMeasured, &measured_);
}

std::string BlockImportanceTracker::missing_text() const {
  return "the checkpoint has no block importance for some layers. They keep the most recent blocks until their first "
         "choice";
}

std::string BlockImportanceTracker::unexpected_text() const {
  return "the checkpoint has block importance for layers that do not use it in this run";
}

void BlockImportanceTracker::check_resume(const ModelConfig& before, const std::string& run) const {
  const ModelConfig& now = model_.config();
  const std::vector<const AttentionConfig*> had = attentions_of(before), has = attentions_of(now);
  for (std::size_t layer = 0; layer < std::min(had.size(), has.size()); ++layer) {
    const std::int64_t old_block = block_size_of(*had[layer]), block = block_size_of(*has[layer]);
    if (old_block == block || !uses_importance(*had[layer], before.kv_heads) ||
        !uses_importance(*has[layer], now.kv_heads))
      continue;
    fail(run, ": ", section_key(*has[layer], now), ".block: ", old_block, " -> ", block, ", but layer ", layer,
         " keeps blocks by importance, and the run's checkpoints hold averages for blocks of ", old_block,
         ". Set it to ", old_block, ", or start a new run from these weights, with run.init_from=", run,
         " and a different run.name (or run.directory, if it is set), which resets the averages");
  }
}

std::string BlockImportanceTracker::load(const std::string& checkpoint, const Manifest& manifest,
                                         const ModelConfig& saved) {
  const auto has = [&](const BlockImportance& i) { return manifest.tensors.contains(name_of(i.layer(), kAverages)); };
  if (std::ranges::none_of(layers_, has)) return "";
  const std::vector<std::int64_t> blocks = blocks_of(model_.config()), theirs = blocks_of(saved);
  std::int64_t others = 0;
  for (const BlockImportance& i : layers_) {
    const auto layer = static_cast<std::size_t>(i.layer());
    if (has(i) && theirs[layer] != blocks[layer]) {
      ++others;
      continue;
    }
    for (const auto& [what, to] : {std::pair{kAverages, i.averages()}, {kScores, i.scores()}}) {
      const auto entry = manifest.tensors.find(name_of(i.layer(), what));
      if (entry == manifest.tensors.end() || entry->second.global_shape[0] != to.dim(0)) continue;
      const std::int64_t distances = std::min(entry->second.global_shape[1], to.dim(1));
      const Tensor from = read_tensor(checkpoint, manifest, entry->first, {{0, 0}, {to.dim(0), distances}});
      for (std::int64_t h = 0; h < to.dim(0); ++h)
        std::copy_n(from.data<float>() + h * distances, distances, to.data<float>() + h * to.dim(1));
    }
  }
  apply_choices();
  if (others == 0) return "";
  return str("the block importance of ", counted(others, "layer"),
             " in the weights' checkpoint is for a different block size, so it starts empty");
}

// Returns for each layer the masses by distance, f32 [2, KV heads, distances]
// (kernels/attention/importance/distance_mass.h), for this rank's queries and the KV heads that this rank selects for.
// Kernels are not tuned here, so that the run's kernel choices do not depend on whether masses were measured.
std::vector<Tensor> BlockImportanceTracker::distance_masses() {
  const std::int64_t heads = model_.config().kv_heads / slices(), first = slice_of(step_->mesh.rank()) * heads;
  ExecContext plain = step_->ctx;
  plain.tuning = nullptr;
  std::vector<Tensor> masses(layers_.size());
  WatchedLayers watched;
  const std::vector<AttentionLayer*> all_layers = model_.attention_layers();
  for (std::size_t n = 0; n < layers_.size(); ++n) {
    masses[n] = step_->ctx.zeros({2, heads, layers_[n].distances()});
    watched.layers.push_back(all_layers[static_cast<std::size_t>(layers_[n].layer())]);
    watched.layers.back()->watch = [&, n, all = layers_[n].num_start_blocks()](const AttendedHeads& h) {
      const Attention call{
          .q = h.q, .k = h.k, .queries = h.spans, .keys = h.keys, .scale = h.scale, .pattern = h.pattern};
      const auto some = all.begin() + first + h.heads.first;
      const Tensor made =
          ring::distance_masses(call, layers_[n].distances(), std::vector(some, some + h.heads.count), plain);
      for (std::int64_t i = 0; i < 2; ++i) {  // sums over calls: each head has one call, or one per part of the queries
        const Tensor sum = masses[n].narrow(0, i, 1).narrow(1, h.heads.first, h.heads.count);
        axpby_kernel({.x = made.narrow(0, i, 1), .y = sum, .out = sum, .beta = 1}, plain);
      }
    };
  }
  step_->forward();
  return masses;
}

void BlockImportanceTracker::measure(std::int64_t step) {
  const ExecContext& ctx = step_->ctx;
  const std::vector<Tensor> masses = distance_masses();
  const auto part = [&](std::size_t first) { return own_.data<float>() + first; };
  for (std::size_t i = 0; i < masses.size(); ++i)
    ctx.stream.impl().copy(part(first_[i]), masses[i].raw(), masses[i].bytes());
  const std::array<float, kDigits> digits = digits_of(layers_);
  ctx.stream.impl().upload(part(message() - kDigits), digits.data(), sizeof(digits));
  in_flight_ = {step, step_->mesh.all().all_gather(messages_, own_, ctx.stream.record())};
}

// Waits until copies of the averages and scores are done. Call before changing averages or scores.
void BlockImportanceTracker::wait_for_copies() {
  if (copies_) std::exchange(copies_, std::nullopt)->synchronize();  // allowed host wait: checkpoint
}

// Adds the measurement in flight, if any, to the averages. Called
// before the next measurement begins; this one has arrived by then.
void BlockImportanceTracker::finish_measurement() {
  if (!in_flight_) return;
  Measurement last = *std::exchange(in_flight_, std::nullopt);
  last.work.wait(*arrivals_);
  const std::vector<float> messages = to_host<float>(messages_, *arrivals_);
  check_choices(messages);
  wait_for_copies();
  for (std::size_t i = 0; i < layers_.size(); ++i) layers_[i].update_averages(last.step, sum_over_ranks(messages, i));
}

void BlockImportanceTracker::check_choices(const std::vector<float>& messages) const {
  const auto digits = [&](int rank) {
    const auto end = messages.begin() + static_cast<std::ptrdiff_t>(message() * (static_cast<std::size_t>(rank) + 1));
    return std::vector(end - kDigits, end);
  };
  for (int rank = 1; rank < step_->mesh.world(); ++rank)
    if (digits(rank) != digits(0))
      fail("pattern: importance: rank ", rank,
           " keeps different blocks than rank 0, although both computed the choice from the same attention masses. The "
           "memory or processor of "
           "one of them is faulty. Resume from the last checkpoint on different machines");
}

// Returns the group of KV heads that a rank computes. Ranks are ordered with tp fastest, then cp.
std::int64_t BlockImportanceTracker::slice_of(int rank) const {
  const int tp = step_->mesh.degree("tp"), cp = step_->mesh.degree("cp");
  const std::int64_t parts = step_->cp_of_heads;
  return rank % tp * parts + (parts > 1 ? rank / tp % cp : 0);
}

// Sums the masses of a layer over all ranks, in rank order. A rank's message has the masses of its group of KV heads.
MeasuredMass BlockImportanceTracker::sum_over_ranks(const std::vector<float>& messages, std::size_t layer) const {
  const auto all = static_cast<std::size_t>(layers_[layer].averages().numel());
  const std::size_t here = all / static_cast<std::size_t>(slices());
  MeasuredMass m{std::vector<double>(all), std::vector<double>(all)};
  for (int rank = 0; rank < step_->mesh.world(); ++rank) {
    const float* const from = messages.data() + static_cast<std::size_t>(rank) * message() + first_[layer];
    const std::size_t first = here * static_cast<std::size_t>(slice_of(rank));
    for (std::size_t n = 0; n < here; ++n) m.sums[first + n] += from[n], m.rows[first + n] += from[here + n];
  }
  return m;
}

bool BlockImportanceTracker::before_step(std::int64_t step) {
  const auto measures = [&](const BlockImportance& i) { return i.measures_before(step); };
  if (step <= measured_ || std::ranges::none_of(layers_, measures)) return false;
  finish_measurement();
  wait_for_copies();
  bool changed = false;
  for (BlockImportance& i : layers_) changed |= i.choose_blocks(step);
  if (changed) apply_choices();
  measure(step);
  measured_ = step;
  return changed;
}

void BlockImportanceTracker::prepare_for_copy(const Stream& copies) {
  finish_measurement();
  if (step_) copies_ = copies;
}

void BlockImportanceTracker::begin(const std::vector<std::string>& missing) {
  const auto lacks = [&](const std::string& name) { return std::ranges::find(missing, name) != missing.end(); };
  wait_for_copies();
  for (BlockImportance& i : layers_)
    if (lacks(name_of(i.layer(), kAverages))) i.reset();
  if (lacks(kMeasured)) measured_ = 0;
}

bool BlockImportanceTracker::on_state_loaded() {
  apply_choices();
  return !layers_.empty();
}

}  // namespace ring
