#pragma once
// Balance of attention pairs between ranks.

#include <cstdint>
#include <vector>

#include "kernels/attention/pattern.h"
#include "parallel/context/layout.h"

namespace ring {

double largest_over_mean(const std::vector<double>& values);  // returns 1 if all values are equal or their sum is 0

// Returns the number of attention pairs of each rank for one causal sequence of the layout: for each of the `slices`
// equal groups of KV heads, the ranks of the layout. Selected blocks are counted by the number that the pattern keeps,
// wherever they are.
std::vector<double> pairs_by_rank(const Pattern&, std::int64_t kv_heads, std::int64_t slices, const ContextLayout&);

}  // namespace ring
