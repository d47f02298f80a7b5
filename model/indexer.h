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

  // As a slice computes them: these KV heads alone.
  void take_heads(std::int64_t first, std::int64_t count) { shape_.first_head = first, shape_.count = count; }
  // x [N/tp,C], the layer's input -> scores f32 [rows,heads,blocks] of these heads, rows as a selection has them.
  Var scores(Run&, const Var& x, const Sequences&, const SelectionPart&) const;
  // What is projected of means of rows, f32 [rows,C] -> [rows, shape().width()].
  Tensor project(const Tensor& means, const ExecContext&) const;
  // Learns from what attention made of these scores, of which a run records: the masses of blocks, which are used up,
  // and the selection. The loss is added to run.auxiliary_loss, where it is wanted: of the blocks that this rank owns,
  // where it shares the queries with others.
  void learn(Run&, const Var& scores, const Tensor& mass, const BlockSelection&, const Sequences&,
             const SelectionPart&) const;

  const IndexShape& shape() const { return shape_; }
  Var biases() const { return biases_ ? biases_->var : Var{}; }  // by distance; none: it has no sense of it
  DType type() const { return projection_->var.value.dtype(); }  // of what it projects
  // Optimizer steps during which all blocks are kept.
  std::int64_t warmup_steps() const { return warmup_steps_; }

 private:
  IndexShape shape_;
  float weight_, share_;  // of the loss; of a KV head in it
  std::int64_t warmup_steps_;
  Param* projection_;
  Param* biases_ = nullptr;
};

// The masses of blocks (kernels/attention/block_mass.h) of a call with its results, which is for some of the heads:
// into their part of those of all, f32 [rows,heads,blocks]; of a part of the queries: added to it. A call without a
// selection has heads that do not learn.
void add_mass(const Tensor& all, const Attention&, KvHeads, const ExecContext&);
// The selection by scores, for whole documents.
BlockSelection selection_by(const Tensor& scores, const Pattern&, const std::vector<Span>&, const ExecContext&);
// The pattern while its indexer warms up: heads whose blocks are selected keep all.
Pattern keeping_all(const Pattern&, std::int64_t kv_heads);

}  // namespace ring
