#pragma once
// What train.watch_interval asks for, of the steps that it names: how far the update moves each part of the model, and
// of each layer's attention, over every rank's first micro-batch, the entropy and how much its blocks keep. The step
// itself is computed as ever, also where it is a replayed graph: all of this is queued before it and behind it, and
// changes no bit.

#include <memory>
#include <optional>
#include <vector>

#include "engine/train_step.h"
#include "optim/update_ratio.h"

namespace ring {

// What a layer keeps whose attention goes by blocks: pairs, as a share of those of causal dense attention, and of the
// weights of dense attention, their mean over sampled rows and heads (kernels/attention/kept_share.h). Where
// ranks of cp and tp share the pairs: the largest number of pairs of a rank, pools included, divided by the mean of its
// replica; of several replicas, the largest quotient.
struct KeptByLayer {
  std::int64_t layer;
  double density, recall;
  std::optional<double> imbalance;
};

struct WatchReport {
  // By Trainer::parts(): norm of the change over norm of the weights before it. NaN: there was no memory for it.
  std::vector<double> update_ratios;
  // By layer, in nats: mean over rows and heads, and the least of a head's means.
  std::vector<double> entropies, least_entropies;
  std::vector<KeptByLayer> kept;  // layers of blocks
  bool empty() const { return update_ratios.empty(); }
};

class Watch {
 public:
  using Result = std::shared_ptr<void>;  // of one step, in host memory

  // So many results are read in turn. OutOfMemory.
  Watch(TrainStep&, Mesh&, std::size_t results);

  // On all ranks, around a step that was loaded. The result is there when what is queued is done.
  Result before();
  void after(const Result&);
  WatchReport report(const Result&) const;  // collective

 private:
  std::size_t parts() const { return step_.part_norms().parts().size(); }
  std::size_t layers() const { return static_cast<std::size_t>(step_.model().config().layers); }
  // By layer: sums of the entropies and their rows, then of shares and their rows, by head; pairs that are kept,
  // dense ones, those with pools.
  std::size_t layer_values() const { return 4 * heads_ + 3; }
  std::size_t values() const { return 2 * parts() + layers() * layer_values(); }
  std::optional<double> imbalance(const double* pairs) const;  // by rank

  TrainStep& step_;
  Mesh& mesh_;
  std::size_t heads_;  // of this slice of the model
  UpdateRatios ratios_;
  std::vector<Result> results_;
  std::size_t next_ = 0;
};

}  // namespace ring
