#pragma once
// The indexer of an attention layer with pattern: learned. It reads the layer's input, detached: means over blocks of
// tokens are projected to small queries, keys and weights (kernels/attention/block_index.h), which score the blocks.

#include "autograd/indexer.h"
#include "model/attended_heads.h"
#include "model/config.h"
#include "model/params.h"

namespace ring {

class Indexer {
 public:
  Indexer(const ParamPrefix&, const ModelConfig& resolved, const AttentionConfig&);
  Param* parameter() const { return projection_; }

  // As a slice computes them: these KV heads alone.
  void take_heads(std::int64_t first, std::int64_t count) { shape_.first_head = first, shape_.count = count; }
  // x [N/tp,C], the layer's input -> scores f32 [rows,Hk,blocks], rows as a selection has them.
  Var scores(Run&, const Var& x, const Sequences&, const Pattern&) const;
  // What is projected of means of rows, f32 [rows,C] -> [rows, shape().width()].
  Tensor project(const Tensor& means, const ExecContext&) const;
  // Learns from what attention made of these scores. The loss is added to run.index_loss, where it is wanted. A run
  // that records nothing learns nothing.
  void learn(Run&, const Var& scores, const AttendedHeads& seen, const Sequences&) const;

  const IndexShape& shape() const { return shape_; }
  DType type() const { return projection_->var.value.dtype(); }  // of what it projects
  // Optimizer steps during which all blocks are kept.
  std::int64_t warmup_steps() const { return warmup_steps_; }

 private:
  IndexShape shape_;
  float weight_, share_;  // of the loss; of a KV head in it
  std::int64_t warmup_steps_;
  Param* projection_;
};

// The documents' rows in blocks of the pattern, one document's blocks behind the other's.
std::vector<PooledRows> block_rows(const Pattern&, const std::vector<Span>&);
// Means over blocks of x [N,C]: f32 [rows,C].
Tensor block_means(const Tensor& x, std::vector<PooledRows> rows, std::int64_t blocks, std::int32_t block,
                   const ExecContext&);
// The selection by scores, for whole documents.
BlockSelection selection_by(const Tensor& scores, const Pattern&, const std::vector<Span>&, const ExecContext&);
// The pattern while its indexer warms up: heads whose blocks are selected keep all.
Pattern keeping_all(const Pattern&, std::int64_t kv_heads);

}  // namespace ring
