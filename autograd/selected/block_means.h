#pragma once
// Computes means over the blocks of documents. The blocks of all documents are consecutive rows of the result, as in a
// selection.

#include <vector>

#include "autograd/context_exchange.h"
#include "kernels/attention/pools/block_pool.h"
#include "kernels/attention/selected/block_select.h"

namespace ring {

// Returns one segment per document, which divides the document's rows into the pattern's blocks.
std::vector<PoolSegment> block_rows(const Pattern&, const std::vector<Span>&);

// Return the means of x [N,C] by block, f32 [blocks,C].
Tensor block_means(const Tensor& x, std::vector<PoolSegment> rows, std::int64_t blocks, std::int32_t block,
                   const ExecContext&);
Tensor block_means(const Tensor& x, const std::vector<Span>& documents, const Pattern&, const ExecContext&);
// Same for sharded documents: returns the means of all documents on each rank, bit-identical. x: this rank's rows.
// Collective.
Tensor block_means(const Tensor& x, const ContextShards&, const Pattern&, ContextExchange&, const ExecContext&);
// Same for several tensors x [N,H,D]: returns f32 [blocks,kv_heads,D] for each, summed over the heads of a group. Uses
// one message for all.
std::vector<Tensor> block_means(const std::vector<Tensor>& x, std::int64_t kv_heads, const ContextShards&,
                                const Pattern&, ContextExchange&, const ExecContext&);

// Returns the blocks of a chunk of sequences. Throws Error if a block is in two chunks.
ChunkBlocks chunk_blocks(const ContextShards&, const Pattern&);
// Computes the means of x [N,H,D], the rows of a chunk, by block: f32 [blocks,G,D], summed over the heads of a group.
// The mean of block b, counted over all documents, becomes row b - first_row.
void chunk_means(const Tensor& x, const Tensor& means, std::int32_t first_row, const ContextShards&, const Pattern&,
                 const ExecContext&);
// Same for x [N,C], with a row for each block of the chunk: returns f32 [blocks,C]. If ranks share the chunk
// (ContextShards::chunks), x has this rank's rows, and all ranks get the means of the whole chunk. Collective.
Tensor chunk_means(const Tensor& x, const ChunkBlocks&, const ContextShards&, const Pattern&, ContextExchange&,
                   const ExecContext&);

// Returns for each document the blocks of which this rank holds rows, and the rows of these blocks in means and
// selections. No block occurs twice.
std::vector<SelectedRows> blocks_with_local_rows(const ContextShards&, const Pattern&);

}  // namespace ring
