#pragma once
// Balance of attention pairs between ranks.

#include <cstdint>
#include <vector>

#include "kernels/attention/pattern.h"
#include "parallel/context/layout.h"

namespace ring {

double largest_over_mean(const std::vector<double>& values);  // returns 1 if all values are equal or their sum is 0

// Returns the number of (query, key) pairs that each rank computes. Ranks are ordered by tensor-parallel slice (each
// slice has an equal group of the KV heads), then by rank of the shards. For patterns that select blocks, counts as
// many blocks as the pattern keeps, since their positions are not known.
std::vector<double> pairs_by_rank(const Pattern&, std::int64_t kv_heads, std::int64_t slices, const ContextShards&);
// Same for one causal sequence.
std::vector<double> pairs_by_rank(const Pattern&, std::int64_t kv_heads, std::int64_t slices, const ContextLayout&);

}  // namespace ring
