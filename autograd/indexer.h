#pragma once
// Ops of the block indexer: scores of blocks, and the loss by which it learns them. Both belong to no path of the
// model's own loss: the gradient of index_loss reaches what made the scores, and nothing else.

#include "autograd/ops.h"
#include "kernels/attention/block_index.h"

namespace ring {

// projected [rows, shape.width()], biases [shape.biases()] or none -> scores f32 [rows, shape.count, columns], as
// kernels/attention/block_index.h has them. blocks: how many each document has, one behind the other; they are the
// rows.
Var index_scores(Run&, const Var& projected, const Var& biases, const IndexShape& shape,
                 const std::vector<std::int32_t>& blocks, std::int64_t columns);

// What attention did with the blocks that were scored.
struct IndexTarget {
  Tensor mass;  // f32, as the scores are (kernels/attention/block_mass.h)
  Tensor bits;  // of the selection
  std::vector<PooledRows> documents;
  std::shared_ptr<const BlockPattern> blocks;
};
// The sum over the documents' rows of the loss [1]. It is a root of its tape, beside the loss head: backward() from any
// root computes the gradient of scale * loss * loss_scale, where the run's state has one. The mass is used up where a
// tape records.
Var index_loss(Run&, const Var& scores, const IndexTarget&, float share, float scale);

}  // namespace ring
