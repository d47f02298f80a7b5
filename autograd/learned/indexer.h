#pragma once
// Ops of the block indexer: block scores, and the loss that trains them. Both are detached from the model's loss: the
// gradient of index_loss reaches only the tensors that made the scores.

#include "autograd/ops.h"
#include "kernels/attention/learned/block_index.h"

namespace ring {

// The selection of key blocks by their scores, and the scores of the kept blocks, f32 [rows, shape.count, room] (room:
// capacity of a list). Other blocks' scores have no gradient, so they are not stored.
struct ScoredBlocks {
  Var scores;
  BlockSelection selection;
};
// Scores key blocks and selects them for the query blocks of these documents, which have `rows` consecutive rows in the
// result (kernels/attention/learned/block_index.h). projected [*, shape.width()]; biases [shape.biases()] or none.
// Queries and keys of a document are in the same rows of `projected`.
ScoredBlocks index_select(Run&, const Var& projected, const Var& biases, const IndexShape& shape,
                          const std::vector<SelectedRows>& documents, std::int64_t rows,
                          const std::shared_ptr<const BlockPattern>&);

// Returns ContextExchange::join_earlier_blocks(projected): the rows of the blocks of a chunk [blocks,C] and of all
// earlier blocks.
Var join_earlier_blocks(Run&, const Var& projected, const ChunkBlocks&, std::int64_t layer);

// The result of attention for the scored blocks.
struct IndexTarget {
  Tensor mass;  // f32, shaped as the scores (kernels/attention/selected/block_mass.h)
  Tensor kept;  // kept blocks of the selection
  std::vector<PoolSegment> documents;
  std::shared_ptr<const BlockPattern> blocks;
};
// Returns the loss [1], summed over the documents' rows. The loss is a root of its tape, in addition to the loss head:
// backward() from any root computes the gradient of scale * loss, times loss_scale if the run has a state. Consumes the
// mass if a tape records.
Var index_loss(Run&, const Var& scores, const IndexTarget&, float share, float scale);

}  // namespace ring
