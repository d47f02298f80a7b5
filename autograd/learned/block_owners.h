#pragma once
// Assigns each block of sharded documents to an owner: the rank that holds the block's first row. In sums over the
// ranks, only the owner counts the block.

#include <vector>

#include "autograd/context_exchange.h"
#include "kernels/attention/pools/block_pool.h"

namespace ring {

// Returns the blocks that this rank owns, as one segment for each run of consecutive blocks. `out` is the row of the
// document's block 0 in means and selections; `leading_gap` covers the blocks before the run. Each block is in one run
// on one rank.
std::vector<PoolSegment> owned_blocks(const ContextShards&, const Pattern&);

// Sums f32 [blocks,H,D], contiguous, over the ranks. On entry each row is this rank's contribution to the block, or 0.
// On return the row holds the sum on the block's owner, and 0 elsewhere. Only blocks that are split between ranks are
// sent. Collective.
void reduce_to_owners(const Tensor& sums, const ContextShards&, const Pattern&, ContextExchange&, const ExecContext&);

}  // namespace ring
