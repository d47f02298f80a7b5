#include "engine/important_blocks.h"

#include <algorithm>
#include <array>
#include <utility>

#include "checkpoint/reader.h"
#include "core/copy_stream.h"
#include "core/fields.h"
#include "engine/origin.h"
#include "model/attention/kinds.h"
#include "model/patterns.h"

namespace ring {
namespace {

constexpr const char* kAverages = "averages";
constexpr const char* kScores = "scores";
constexpr const char* kMeasured = "importance.measured";

std::string name_of(std::int64_t layer, const char* what) {
  return str(kImportancePrefix, "blocks.", layer, ".", what);
}

// A hash of what the layers keep, in digits that f32 has exactly.
constexpr std::int64_t kDigits = 4;
std::array<float, kDigits> digits_of(Model& model) {
  std::uint64_t hash = kHashOfNothing;
  for (const BlockImportance& i : model.importance())
    hash = hash_text({reinterpret_cast<const char*>(i.scores().raw()), i.scores().bytes()}, hash);
  std::array<float, kDigits> digits;
  for (float& d : digits) d = static_cast<float>(hash & 0xffff), hash >>= 16;
  return digits;
}

// Tokens of each layer's blocks.
std::vector<std::int64_t> blocks_of(const ModelConfig& model) {
  const ModelConfig c = model.resolved();
  std::vector<std::int64_t> blocks;
  for (const AttentionConfig* a : attentions_of(c)) blocks.push_back(block_of(*a));
  return blocks;
}

}  // namespace

void add_importance(State& state, Model& model) {
  for (const BlockImportance& i : model.importance()) {
    state.add(name_of(i.layer(), kAverages), i.averages());
    state.add(name_of(i.layer(), kScores), i.scores());
  }
}

std::set<std::string> importance_of(const ModelConfig& model) {
  const ModelConfig c = model.resolved();
  const std::vector<const AttentionConfig*> attentions = attentions_of(c);
  std::set<std::string> names;
  for (std::size_t layer = 0; layer < attentions.size(); ++layer)
    if (keeps_important_blocks(*attentions[layer], c.kv_heads))
      for (const char* what : {kAverages, kScores}) names.insert(name_of(static_cast<std::int64_t>(layer), what));
  if (!names.empty()) names.insert(kMeasured);
  return names;
}

void check_sizes_of_important_blocks(const ModelConfig& before, const ModelConfig& now, const std::string& run) {
  const std::vector<const AttentionConfig*> had = attentions_of(before), has = attentions_of(now);
  for (std::size_t layer = 0; layer < std::min(had.size(), has.size()); ++layer) {
    const std::int64_t old_block = block_of(*had[layer]), block = block_of(*has[layer]);
    if (old_block == block || !keeps_important_blocks(*had[layer], before.kv_heads) ||
        !keeps_important_blocks(*has[layer], now.kv_heads))
      continue;
    fail(run, ": ", section_key(*has[layer], now), ".block: ", old_block, " -> ", block, ", but layer ", layer,
         " keeps blocks by importance, of which the run's checkpoints hold averages by blocks of ", old_block,
         ": set it to ", old_block, ", or begin a new run with these weights, run.init_from=", run,
         " and another run.name (or run.directory, if it is set), where averages begin empty");
  }
}

// A model of another context has more or fewer distances: the nearest ones are taken.
std::int64_t load_importance(Model& model, const std::string& checkpoint) {
  if (model.importance().empty()) return 0;
  const Manifest manifest = read_manifest(checkpoint);
  const auto has = [&](const BlockImportance& i) { return manifest.tensors.contains(name_of(i.layer(), kAverages)); };
  if (std::ranges::none_of(model.importance(), has)) return 0;
  const std::vector<std::int64_t> blocks = blocks_of(model.config()),
                                  theirs = blocks_of(settings_in(manifest.metadata, checkpoint).model);
  std::int64_t others = 0;
  for (const BlockImportance& i : model.importance()) {
    const auto layer = static_cast<std::size_t>(i.layer());
    if (has(i) && theirs[layer] != blocks[layer]) {
      ++others;
      continue;
    }
    for (const auto& [what, to] : {std::pair{kAverages, i.averages()}, {kScores, i.scores()}}) {
      const auto saved = manifest.tensors.find(name_of(i.layer(), what));
      if (saved == manifest.tensors.end() || saved->second.global_shape[0] != to.dim(0)) continue;
      const std::int64_t distances = std::min(saved->second.global_shape[1], to.dim(1));
      const Tensor from = read_tensor(checkpoint, manifest, saved->first, {{0, 0}, {to.dim(0), distances}});
      for (std::int64_t h = 0; h < to.dim(0); ++h)
        std::copy_n(from.data<float>() + h * distances, distances, to.data<float>() + h * to.dim(1));
    }
  }
  model.apply_importance();
  return others;
}

ImportantBlocks::ImportantBlocks(TrainStep& step, Mesh& mesh)
    : step_(step), mesh_(mesh), arrivals_(copy_stream(step.exec().stream)) {
  std::int64_t numbers = 0;
  for (const BlockImportance& i : step.model().importance()) {
    first_.push_back(static_cast<std::size_t>(numbers));
    numbers += 2 * i.averages().numel() / slices();
  }
  const ExecContext& ctx = step.exec();
  own_ = ctx.empty({numbers + kDigits}, DType::f32, Lifetime::run);
  messages_ = ctx.empty({own_.numel() * mesh.world()}, DType::f32, Lifetime::run);
}

ImportantBlocks::~ImportantBlocks() {
  try {
    if (travelling_) travelling_->work.wait(arrivals_);
  } catch (const Error&) {  // whoever ended the run has said so
  }
}

void ImportantBlocks::measure(std::int64_t step) {
  const ExecContext& ctx = step_.exec();
  const std::vector<Tensor> masses = step_.distance_masses();
  const auto part = [&](std::size_t first) { return own_.data<float>() + first; };
  for (std::size_t i = 0; i < masses.size(); ++i)
    ctx.stream.impl().copy(part(first_[i]), masses[i].raw(), masses[i].bytes());
  const std::array<float, kDigits> digits = digits_of(step_.model());
  ctx.stream.impl().upload(part(message() - kDigits), digits.data(), sizeof(digits));
  travelling_ = {step, mesh_.all().all_gather(messages_, own_, ctx.stream.record())};
}

// Ahead of what writes the averages and scores.
void ImportantBlocks::await_copies() {
  if (copies_) std::exchange(copies_, std::nullopt)->synchronize();  // host waits: checkpoint
}

// What was sent a measurement ago is there by now.
void ImportantBlocks::settle() {
  if (!travelling_) return;
  Travelling last = *std::exchange(travelling_, std::nullopt);
  last.work.wait(arrivals_);
  const std::vector<float> messages = to_host<float>(messages_, arrivals_);
  check_choices(messages);
  await_copies();
  const std::span<BlockImportance> layers = step_.model().importance();
  for (std::size_t i = 0; i < layers.size(); ++i) layers[i].average(last.step, sum_over_ranks(messages, i));
}

void ImportantBlocks::check_choices(const std::vector<float>& messages) const {
  const auto digits = [&](int rank) {
    const auto end = messages.begin() + static_cast<std::ptrdiff_t>(message() * (static_cast<std::size_t>(rank) + 1));
    return std::vector(end - kDigits, end);
  };
  for (int rank = 1; rank < mesh_.world(); ++rank)
    if (digits(rank) != digits(0))
      fail("pattern: importance: rank ", rank,
           " keeps other blocks than rank 0, though both choose by the same masses: "
           "the memory or the processor of one of them errs. Resume from the last checkpoint, on other machines");
}

// Neighbours are those of tp, then those of cp.
std::int64_t ImportantBlocks::slice_of(int rank) const {
  const int tp = mesh_.degree("tp"), cp = mesh_.degree("cp");
  const int slices = step_.plan().cp_of_heads();
  return std::int64_t{rank % tp} * slices + (slices > 1 ? rank / tp % cp : 0);
}

// In the ranks' order, each its slice of the heads.
MeasuredMass ImportantBlocks::sum_over_ranks(const std::vector<float>& messages, std::size_t layer) const {
  const auto all = static_cast<std::size_t>(step_.model().importance()[layer].averages().numel());
  const std::size_t here = all / static_cast<std::size_t>(slices());
  MeasuredMass m{std::vector<double>(all), std::vector<double>(all)};
  for (int rank = 0; rank < mesh_.world(); ++rank) {
    const float* const from = messages.data() + static_cast<std::size_t>(rank) * message() + first_[layer];
    const std::size_t first = here * static_cast<std::size_t>(slice_of(rank));
    for (std::size_t n = 0; n < here; ++n) m.sums[first + n] += from[n], m.rows[first + n] += from[here + n];
  }
  return m;
}

bool ImportantBlocks::before(std::int64_t step) {
  const std::span<BlockImportance> layers = step_.model().importance();
  const auto measures = [&](const BlockImportance& i) { return i.measures(step); };
  if (step <= measured_ || std::ranges::none_of(layers, measures)) return false;
  settle();
  await_copies();
  bool changed = false;
  for (BlockImportance& i : layers) changed |= i.choose(step);
  if (changed) step_.model().apply_importance();
  measure(step);
  measured_ = step;
  return changed;
}

void ImportantBlocks::settle_for(const Stream& copies) {
  settle();
  copies_ = copies;
}

void ImportantBlocks::begin(const std::vector<std::string>& missing) {
  const auto lacks = [&](const std::string& name) { return std::ranges::find(missing, name) != missing.end(); };
  await_copies();
  for (BlockImportance& i : step_.model().importance())
    if (lacks(name_of(i.layer(), kAverages))) i.forget();
  if (lacks(kMeasured)) measured_ = 0;
}

void ImportantBlocks::restored() { step_.model().apply_importance(); }

void ImportantBlocks::add_state(State& state) {
  add_importance(state, step_.model());
  state.add(kMeasured, &measured_);
}

}  // namespace ring
