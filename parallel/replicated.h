#pragma once
// Parameters that every process of tensor parallelism holds whole (norms, learned positions, biases of the output
// projections): each process has a part of their gradient, from its rows or its heads.

#include <vector>

#include "comm/communicator.h"
#include "model/params.h"

namespace ring {

// Elements [begin, end) of the flat buffers.
struct FlatRange {
  std::int64_t begin = 0, end = 0;
  bool operator==(const FlatRange&) const = default;
};

// Ascending, neighbours joined; none where nothing is cut.
std::vector<FlatRange> replicated_ranges(const Parameters&);

// What this process counts of a sum over the elements of the whole model, such as its gradient's squared norm: its
// slices, and, being rank 0, what is replicated. Of all processes together each element counts once.
std::vector<FlatRange> counted_ranges(const Parameters&);

// Sums the replicated gradients over `tp`, so that all processes hold the same bits. Does nothing for one process.
void sum_replicated(const Parameters&, Communicator& tp, const Stream&);

}  // namespace ring
