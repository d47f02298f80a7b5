#pragma once
// The indexer of an attention layer with pattern: learned. It reads the layer's input, detached: means over blocks of
// tokens are projected to small queries, keys and weights (kernels/attention/learned/block_index.h), which score the
// blocks.

#include "autograd/learned/indexer.h"
#include "autograd/selected/block_means.h"
#include "model/config.h"
#include "model/params.h"

namespace ring {

class Indexer {
 public:
  Indexer(const ParamPrefix&, const ModelConfig& resolved, const AttentionConfig&);
  std::vector<Param*> parameters() const;

  // Restricts the indexer to the KV heads of a tensor-parallel slice.
  void restrict_to_heads(std::int64_t first, std::int64_t count) { shape_.first_head = first, shape_.count = count; }
  // Scores key blocks from the layer's input x [N/tp,C], and selects by these scores for the heads of the
  // SelectionPart. The result has one row for each query block; it is empty if the part's heads do not select.
  // Collective if ranks share the documents. layer: number of the layer.
  ScoredBlocks select(Run&, const Var& x, const Sequences&, const SelectionPart&, std::int64_t layer) const;
  // Applies the indexer's projections to row means, f32 [rows,C] -> [rows, shape().width()].
  Tensor project(const Tensor& means, const ExecContext&) const;
  // Computes the indexer's loss from its scores, the block masses of attention and the selection; records the gradient.
  // Adds the loss to run.probes.auxiliary_loss, if defined. Consumes `mass` when a tape records. If ranks share the
  // queries, each rank counts only the query blocks that it owns.
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
  // weight_: weight of the indexer's loss. share_: factor on each KV head's term of the loss, 1 / (heads that learn).
  float weight_, share_;
  std::int64_t warmup_steps_;
  Param* projection_;
  Param* biases_ = nullptr;
};

// Computes the block masses (kernels/attention/selected/block_mass.h) of an attention call for some of the heads.
// Stores them in these heads' part of `masses`, f32 [rows,heads,room] (room: capacity of a list); if the call has only
// a part of the queries, adds them instead. in_chunks: the call has the keys of one chunk. Does nothing if the call has
// no selection.
void add_mass(const Tensor& masses, const Attention&, KvHeads, bool in_chunks, const ExecContext&);

}  // namespace ring
