#include "trainer/watch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "comm/host.h"
#include "parallel/imbalance.h"

namespace ring {
namespace {

// Stands for a number of pairs that the forward counts, because the forward selects these pairs.
constexpr float kCountedInForward = -1;

float* floats_of(const Watch::Result& r) { return static_cast<float*>(r.get()); }

}  // namespace

Watch::Watch(TrainStep& step, Mesh& mesh, std::size_t num_results)
    : step_(step),
      mesh_(mesh),
      host_(mesh.host_group(kIslandAxes)),
      layers_(attention_layers_of(step.model().config())),
      heads_(static_cast<std::size_t>(step.model().config().heads / mesh.degree("tp"))),
      ratios_(step.data().shard(), step.model(), step.data().sharded() || mesh.group(kDataAxes).rank() == 0,
              step.exec()) {
  for (std::size_t i = 0; i < num_results; ++i)
    results_.push_back(step.exec().stream.impl().host_buffer(values() * sizeof(float)));
}

Watch::Result Watch::begin_step() {
  const Result r = results_[next_++ % results_.size()];
  std::fill_n(floats_of(r), values(), std::numeric_limits<float>::quiet_NaN());
  const ExecContext& ctx = step_.exec();
  const std::vector<Tensor> layers = step_.attention_entropies();
  RING_CHECK(layers.size() == this->layers(), layers.size(), " attentions in ", this->layers(), " layers");
  const std::vector<AttentionLayer*> attentions = step_.model().attention_layers();
  float* to = floats_of(r) + 2 * parts();
  for (std::size_t i = 0; i < layers.size(); ++i, to += layer_values()) {
    const Tensor& sums = layers[i];
    RING_CHECK(sums.bytes() == 2 * heads_ * sizeof(float) || sums.bytes() == (4 * heads_ + 3) * sizeof(float),
               "entropies are ", describe(sums), " of ", heads_, " heads");
    std::fill_n(to, layer_values(), 0.0f);
    ctx.stream.impl().copy(to, sums.raw(), sums.bytes());
    to[layer_values() - 1] = static_cast<float>(step_.attention_pairs(*attentions.at(i)).value_or(kCountedInForward));
  }
  ratios_.before_update(ctx);
  return r;
}

// The update is already queued and must not be repeated, so if memory runs out here, only the ratios are lost.
void Watch::end_step(const Result& r) {
  const ScopeGuard scope(*step_.exec().scopes, {scopes::optimizer});
  try {
    const Tensor& squares = ratios_.after_update(step_.exec());
    step_.exec().stream.impl().copy(floats_of(r), squares.raw(), squares.bytes());
  } catch (const OutOfMemory&) {
  }
}

// Ranks of a replica are consecutive: cp and tp are the last axes of the mesh.
double Watch::imbalance(const double* pairs) const {
  const int ranks = mesh_.degree("cp") * mesh_.degree("tp");
  double largest = 1;
  for (const double* replica = pairs; replica < pairs + host_.size(); replica += ranks)
    largest = std::max(largest, largest_over_mean({replica, replica + ranks}));
  return largest;
}

WatchReport Watch::report(const Result& r) const {
  const std::size_t all_heads = heads_ * static_cast<std::size_t>(mesh_.degree("tp"));
  const std::size_t at_shares = 2 * parts() + layers() * 2 * all_heads, at_pairs = at_shares + layers() * 4;
  const auto world = static_cast<std::size_t>(host_.size()), rank = static_cast<std::size_t>(host_.rank());
  std::vector<double> sums(at_pairs + layers() * world);
  const float* from = floats_of(r);
  std::copy_n(from, 2 * parts(), sums.begin());
  // Copies the sum of entropies and the number of rows of each head in this shard to the head's place among all heads.
  const std::size_t first = heads_ * static_cast<std::size_t>(mesh_.coord("tp"));
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    const float* const of = from + 2 * parts() + layer * layer_values();
    double *const to = &sums[2 * parts() + layer * 2 * all_heads + first], *const shares = &sums[at_shares + layer * 4];
    for (std::size_t h = 0; h < heads_; ++h) {
      to[h] = of[h], to[all_heads + h] = of[heads_ + h];
      shares[0] += of[2 * heads_ + h], shares[1] += of[3 * heads_ + h];
    }
    shares[2] = of[4 * heads_], shares[3] = of[4 * heads_ + 1];
    const float pairs = of[layer_values() - 1];
    sums[at_pairs + layer * world + rank] =
        pairs == kCountedInForward ? double{of[4 * heads_]} + of[4 * heads_ + 2] : pairs;
  }
  all_reduce_host(host_, sums, Reduce::sum);
  WatchReport out;
  for (std::size_t p = 0; p < parts(); ++p) {
    const double change = sums[p], size = sums[parts() + p];
    out.update_ratios.push_back(size == 0 ? 0 : std::sqrt(change / size));  // 0 if all of the part is frozen
  }
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    const double* const of = &sums[2 * parts() + layer * 2 * all_heads];
    double sum = 0, rows = 0, min = std::numeric_limits<double>::infinity();
    for (std::size_t h = 0; h < all_heads; ++h) {
      sum += of[h];
      rows += of[all_heads + h];
      min = std::min(min, of[h] / of[all_heads + h]);
    }
    out.entropies.push_back(sum / rows);
    out.min_entropies.push_back(rows > 0 ? min : sum / rows);  // no rows: nothing was measured (soft cap)
    const double* const shares = &sums[at_shares + layer * 4];
    if (shares[3] > 0) out.kept.push_back({layers_[layer], shares[2] / shares[3], shares[0] / shares[1]});
    if (mesh_.degree("cp") * mesh_.degree("tp") > 1)
      out.imbalances.push_back(imbalance(&sums[at_pairs + layer * world]));
  }
  return out;
}

}  // namespace ring
