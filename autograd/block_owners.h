#pragma once
// Blocks of documents that are cut among ranks: whoever has the first row of one owns it, and counts it for all.

#include <vector>

#include "autograd/context_exchange.h"
#include "kernels/attention/block_pool.h"

namespace ring {

// The blocks that this rank owns, in runs: rows of means and selections from `out` on, of which all that come before
// the run are skipped. None is in two runs, nor on two ranks.
std::vector<PooledRows> owned_blocks(const ContextShards&, const Pattern&);

// sums f32 [blocks,H,D], contiguous, with a row for each block of which this rank has a row: what its rows add, else 0.
// Becomes the sum over the ranks where this one owns the block, and 0 elsewhere. Blocks that one rank has whole do not
// travel.
void sum_to_owners(const Tensor& sums, const ContextShards&, const Pattern&, ContextExchange&, const ExecContext&);

}  // namespace ring
