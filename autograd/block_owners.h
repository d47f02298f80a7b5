#pragma once
// Ownership of the blocks of sharded documents: the rank with a block's first row owns the block, and counts it for all
// ranks.

#include <vector>

#include "autograd/context_exchange.h"
#include "kernels/attention/block_pool.h"

namespace ring {

// Returns the blocks that this rank owns, as runs of rows of means and selections from `out` on; blocks before the run
// are skipped. Each block is in one run on one rank.
std::vector<PoolSegment> owned_blocks(const ContextShards&, const Pattern&);

// Sums f32 [blocks,H,D], contiguous, over the ranks. On entry each row is this rank's contribution to the block, or 0.
// On return the row holds the sum on the block's owner, and 0 elsewhere. Only blocks that are split between ranks are
// sent. Collective.
void sum_to_owners(const Tensor& sums, const ContextShards&, const Pattern&, ContextExchange&, const ExecContext&);

}  // namespace ring
