#pragma once
// The indexer of an attention layer with pattern: learned. It reads the layer's input, detached: means over blocks of
// tokens are projected to small queries, keys and weights (kernels/attention/block_index.h), which score the blocks.

#include "autograd/block_means.h"
#include "autograd/indexer.h"
#include "model/config.h"
#include "model/params.h"

namespace ring {

class Indexer {
 public:
  Indexer(const ParamPrefix&, const ModelConfig& resolved, const AttentionConfig&);
  std::vector<Param*> parameters() const;

  // Restricts the indexer to the KV heads of a tensor-parallel slice.
  void restrict_to_heads(std::int64_t first, std::int64_t count) { shape_.first_head = first, shape_.count = count; }
  // Returns scores f32 [rows,heads,blocks] of these heads for the layer's input x [N/tp,C]. Rows are those of a
  // selection.
  Var scores(Run&, const Var& x, const Sequences&, const SelectionPart&) const;
  // Applies the indexer's projections to row means, f32 [rows,C] -> [rows, shape().width()].
  Tensor project(const Tensor& means, const ExecContext&) const;
  // Adds the indexer's loss to run.auxiliary_loss, if defined, and records its gradient, for these scores, the block
  // masses of attention and its selection. Consumes `mass` when a tape records. If ranks share the queries, each rank
  // counts the blocks that it owns.
  void learn(Run&, const Var& scores, const Tensor& mass, const BlockSelection&, const Sequences&,
             const SelectionPart&) const;

  const IndexShape& shape() const { return shape_; }
  // Returns the biases by distance; none if the indexer ignores distance.
  Var biases() const { return biases_ ? biases_->var : Var{}; }
  DType type() const { return projection_->var.value.dtype(); }  // type of the projection's weights
  // Optimizer steps at the start during which all blocks are kept.
  std::int64_t warmup_steps() const { return warmup_steps_; }

 private:
  IndexShape shape_;
  float weight_, share_;  // weight of the loss; share of one KV head in it
  std::int64_t warmup_steps_;
  Param* projection_;
  Param* biases_ = nullptr;
};

// Computes the block masses (kernels/attention/block_mass.h) of an attention call for some of the heads into their part
// of `all`, f32 [rows,heads,blocks]. A call for a part of the queries adds to it. Heads of a call without a selection
// do not learn.
void add_mass(const Tensor& all, const Attention&, KvHeads, const ExecContext&);
// Returns the selection by scores, for whole documents.
BlockSelection selection_by(const Tensor& scores, const Pattern&, const std::vector<Span>&, const ExecContext&);
// Returns the pattern during the indexer's warm-up: heads with selected blocks keep all blocks.
Pattern select_all_blocks(const Pattern&, std::int64_t kv_heads);

}  // namespace ring
