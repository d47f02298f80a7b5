#include "autograd/learned/indexer.h"

#include <numeric>

#include "kernels/matmul.h"

namespace ring {
namespace {

struct IndexerInputs {
  SlotPtr projected, biases;
};

struct ScoredForBackward {
  Saved projected, kept;
};

struct ScoresRule {
  static constexpr bool kKeepsNoTensor = true;
  IndexShape shape;
  std::vector<SelectedRows> documents;

  std::int64_t rows_written() const {
    return std::accumulate(documents.begin(), documents.end(), std::int64_t{0},
                           [](std::int64_t sum, const SelectedRows& d) { return sum + d.end; });
  }
  void operator()(const Backward& back, const IndexerInputs& inputs, const ScoredForBackward& saved) const {
    const Tensor projected = saved.projected.get(back.ctx), kept = saved.kept.get(back.ctx);
    if (inputs.projected) {
      const Sink s = back.sink(inputs.projected, projected.shape(), projected.dtype());
      if (s.beta == 0 && rows_written() < projected.dim(0)) fill_zero(s.dst, back.ctx.stream);
      index_scores_backward_kernel({projected, kept, back.grad(), s.dst, shape, documents, s.beta}, back.ctx);
    }
    if (inputs.biases) {
      const Sink s = back.sink(inputs.biases, {shape.biases()}, projected.dtype());
      index_distances_backward_kernel({kept, back.grad(), s.dst, shape, documents, s.beta}, back.ctx);
    }
  }
};

}  // namespace

ScoredBlocks index_select(Run& run, const Var& projected, const Var& biases, const IndexShape& shape,
                          const std::vector<SelectedRows>& documents, std::int64_t rows,
                          const std::shared_ptr<const BlockPattern>& blocks) {
  RING_CHECK(projected.value.shape().size() == 2, "index_select: projected is ", describe(projected.value));
  const IndexSelection made = select_by_index(projected.value, biases.value, shape, documents, rows, blocks, run.ctx);
  if (!run.records(projected, biases)) return {{made.scores, nullptr}, made.selection};
  const Var scores = run.record("index_scores", made.scores, IndexerInputs{projected.slot, biases.slot},
                                ScoredForBackward{run.save(projected), save_in_place(made.selection.kept)},
                                ScoresRule{shape, documents});
  return {scores, made.selection};
}

Var join_earlier_blocks(Run& run, const Var& projected, const ChunkBlocks& chunk, std::int64_t layer) {
  RING_CHECK(run.layout.cp, "join_earlier_blocks: the run has no exchange (RunLayout::cp)");
  ContextExchange& exchange = run.layout.cp->of_layer(layer);
  const Tensor all = exchange.join_earlier_blocks(projected.value, chunk, run.ctx);
  if (!run.records(projected)) return in_place(all);
  Var joined = run.record("join_earlier_blocks", all, projected.slot,
                          [&exchange, chunk](const Backward& back, const SlotPtr& input) {
                            back.accumulate(input, exchange.join_earlier_blocks_backward(back.grad(), chunk, back.ctx));
                          });
  joined.parameter = true;  // saved in place: the exchange keeps the rows alive
  return joined;
}

Var index_loss(Run& run, const Var& scores, const IndexTarget& a, float share, float scale) {
  const bool records = run.records(scores);
  const Tensor rows = run.ctx.zeros({scores.value.dim(0)}), sum = run.ctx.empty({1});
  index_loss_kernel({.scores = scores.value,
                     .mass = a.mass,
                     .kept = a.kept,
                     .loss = rows,
                     .gradient = records ? a.mass : Tensor{},
                     .documents = a.documents,
                     .blocks = a.blocks,
                     .share = share,
                     .scale = scale,
                     .state = run.state},
                    run.ctx);
  column_sum_kernel({.x = rows.view({rows.numel(), 1}), .out = sum}, run.ctx);
  if (!records) return {sum, nullptr};
  const Var loss = run.record("index_loss", sum, scores.slot, run.save(a.mass),
                              [](const Backward& back, const SlotPtr& input, const Saved& saved_gradient) {
                                back.accumulate(input, saved_gradient.get(back.ctx));
                              });
  loss.slot->written = true;  // lets this step run in a backward from any root: its gradient is already known
  return loss;
}

}  // namespace ring
