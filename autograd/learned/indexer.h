#pragma once
// Ops of the block indexer: block scores, and the loss that trains them. Both are detached from the model's loss: the
// gradient of index_loss reaches only the tensors that made the scores.

#include "autograd/ops.h"
#include "kernels/attention/learned/block_index.h"

namespace ring {

// Returns scores f32 [rows, shape.count, columns] for projected [rows, shape.width()] and biases [shape.biases()] or
// none (kernels/attention/learned/block_index.h). blocks: number of blocks of each document; the blocks of all
// documents are consecutive rows.
Var index_scores(Run&, const Var& projected, const Var& biases, const IndexShape& shape,
                 const std::vector<std::int32_t>& blocks, std::int64_t columns);

// Same for the query blocks of these documents. Returns scores with `rows` rows. Queries and keys of a document are in
// the same rows of `projected`.
Var index_scores(Run&, const Var& projected, const Var& biases, const IndexShape& shape,
                 const std::vector<SelectedRows>& documents, std::int64_t rows, std::int64_t columns);

// Returns ContextExchange::join_earlier_blocks(projected): the rows of the blocks of a chunk [blocks,C] and of all
// earlier blocks.
Var join_earlier_blocks(Run&, const Var& projected, const ChunkBlocks&, std::int64_t layer);

// The result of attention for the scored blocks.
struct IndexTarget {
  Tensor mass;  // f32, shaped as the scores (kernels/attention/selected/block_mass.h)
  Tensor bits;  // bits of the selection
  std::vector<PoolSegment> documents;
  std::shared_ptr<const BlockPattern> blocks;
};
// Returns the loss [1], summed over the documents' rows. The loss is a root of its tape, in addition to the loss head:
// backward() from any root computes the gradient of scale * loss, times loss_scale if the run has a state. Consumes the
// mass if a tape records.
Var index_loss(Run&, const Var& scores, const IndexTarget&, float share, float scale);

}  // namespace ring
