#pragma once
// Measures the steps that train.diagnostics_interval selects: how far the update moves each part of the model, and, for
// the attention of each layer in every rank's first micro-batch, the entropy and how much the blocks keep. Measurements
// are queued before and after the step, which may be a replayed graph; the step's results stay bit-identical.

#include <memory>
#include <vector>

#include "engine/train_step.h"
#include "optim/update_ratio.h"

namespace ring {

// Statistics of a layer with block-sparse attention.
// density: pairs kept, relative to causal dense attention.
// recall: kept share of dense attention's probabilities, averaged over sampled rows and heads
// (kernels/attention/selected/attention_recall.h).
struct KeptByLayer {
  std::int64_t layer;
  double density, recall;
};

struct WatchReport {
  // By Trainer::parts(): norm of the change, divided by the norm of the weights before it; NaN if there was too little
  // memory.
  std::vector<double> update_ratios;
  // One value per layer with attention, in nats: the mean over rows and heads, and the lowest mean of a head.
  std::vector<double> entropies, min_entropies;
  std::vector<KeptByLayer> kept;  // statistics of the layers with blocks; other layers have none
  // One value per layer with attention; empty if each rank computes all pairs of its sequences. A replica's value is
  // the maximum number of pairs that one of its cp and tp ranks computes, divided by the mean over these ranks. This
  // holds the maximum over all replicas.
  std::vector<double> imbalances;
  bool empty() const { return update_ratios.empty(); }
};

class Watch {
 public:
  using Result = std::shared_ptr<void>;  // result of one step, in host memory

  // num_results: number of result buffers, used in turn. Throws OutOfMemory.
  Watch(TrainStep&, Mesh&, std::size_t num_results);

  // Call begin_step() and end_step() on all ranks around the computation of a loaded step. The result is valid once the
  // queued work is done.
  Result begin_step();
  void end_step(const Result&);
  WatchReport report(const Result&) const;  // collective

 private:
  std::size_t parts() const { return step_.part_norms().parts().size(); }
  std::size_t layers() const { return layers_.size(); }
  // Number of values per layer. First, for each head: sum of entropies, number of rows in that sum, sum of kept shares,
  // number of rows in that sum. Then pairs kept, dense pairs, pairs with pools. The last value is the number of pairs
  // that this rank computes, or kCountedInForward.
  std::size_t layer_values() const { return 4 * heads_ + 4; }
  std::size_t values() const { return 2 * parts() + layers() * layer_values(); }
  double imbalance(const double* pairs) const;  // pairs: number of pairs by rank

  TrainStep& step_;
  Mesh& mesh_;
  Communicator& host_;                // the ranks of this island
  std::vector<std::int64_t> layers_;  // the layers with attention
  std::size_t heads_;                 // heads of this rank's tensor-parallel shard
  UpdateRatios ratios_;
  std::vector<Result> results_;
  std::size_t next_ = 0;
};

}  // namespace ring
