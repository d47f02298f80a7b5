#pragma once
// Parameters that every process of tensor parallelism holds whole (norms, learned positions, biases of the output
// projections): each process has a part of their gradient, from its rows or its heads.

#include "comm/communicator.h"
#include "parallel/holding.h"

namespace ring {

// Sums their gradients over `tp`, so that all processes hold the same bits. Does nothing for one process.
void sum_replicated(const Holding&, Communicator& tp, const Stream&);

}  // namespace ring
