#include "trainer/important_blocks.h"

#include <algorithm>

#include "checkpoint/reader.h"
#include "comm/host.h"

namespace ring {
namespace {

std::string name_of(const BlockImportance& i, const char* what) {
  return str(kImportancePrefix, "blocks.", i.layer(), ".", what);
}

}  // namespace

void add_importance(State& state, Decoder& model) {
  for (const BlockImportance& i : model.importance()) {
    state.add(name_of(i, "averages"), i.averages());
    state.add(name_of(i, "scores"), i.scores());
  }
}

// A model of another context has more or fewer distances: the nearest ones are taken.
void load_importance(Decoder& model, const std::string& checkpoint) {
  if (model.importance().empty()) return;
  const Manifest manifest = read_manifest(checkpoint);
  for (const BlockImportance& i : model.importance())
    for (const auto& [what, to] : {std::pair{"averages", i.averages()}, {"scores", i.scores()}}) {
      const auto saved = manifest.tensors.find(name_of(i, what));
      if (saved == manifest.tensors.end() || saved->second.global_shape[0] != to.dim(0)) continue;
      const std::int64_t distances = std::min(saved->second.global_shape[1], to.dim(1));
      const Tensor from = read_tensor(checkpoint, manifest, saved->first, {{0, 0}, {to.dim(0), distances}});
      for (std::int64_t h = 0; h < to.dim(0); ++h)
        std::copy_n(from.data<float>() + h * distances, distances, to.data<float>() + h * to.dim(1));
    }
  model.take_important_blocks();
}

// Rows of other slices come from their ranks.
MeasuredMass ImportantBlocks::sum_over_ranks(const BlockImportance& i, const Tensor& own) const {
  const std::vector<float> masses = to_host<float>(own.view({own.numel()}), step_.exec().stream);
  const auto all = static_cast<std::size_t>(i.averages().numel()), here = masses.size() / 2;
  const std::size_t first = here * static_cast<std::size_t>(mesh_.coord("tp"));
  std::vector<double> sums(2 * all);
  std::copy_n(masses.begin(), here, sums.begin() + static_cast<std::ptrdiff_t>(first));
  std::copy_n(masses.begin() + static_cast<std::ptrdiff_t>(here), here,
              sums.begin() + static_cast<std::ptrdiff_t>(all + first));
  all_reduce_host(mesh_.host(), sums, Reduce::sum);
  const auto middle = sums.begin() + static_cast<std::ptrdiff_t>(all);
  return {{sums.begin(), middle}, {middle, sums.end()}};
}

bool ImportantBlocks::before(std::int64_t step) {
  std::vector<BlockImportance>& layers = step_.model().importance();
  const auto measures = [&](const BlockImportance& i) { return i.measures(step); };
  if (step <= measured_ || std::ranges::none_of(layers, measures)) return false;
  measured_ = step;
  const std::vector<Tensor> masses = step_.distance_masses();
  bool changed = false;
  for (std::size_t i = 0; i < layers.size(); ++i) changed |= layers[i].take(step, sum_over_ranks(layers[i], masses[i]));
  if (changed) step_.model().take_important_blocks();
  return changed;
}

void ImportantBlocks::add_state(State& state) {
  add_importance(state, step_.model());
  state.add("importance.measured", &measured_);
}

}  // namespace ring
