#pragma once
// How evenly ranks share the pairs of attention.

#include <cstdint>
#include <vector>

#include "kernels/attention/pattern.h"
#include "parallel/context/layout.h"

namespace ring {

double largest_over_mean(const std::vector<double>& values);  // 1: all are alike, or nothing is there

// Pairs of each rank for one causal sequence of the layout: `slices` of the KV heads, which they divide, and of each
// the ranks that hold its rows. Selected blocks count by how many the pattern keeps, wherever they are.
std::vector<double> pairs_by_rank(const Pattern&, std::int64_t kv_heads, std::int64_t slices, const ContextLayout&);

}  // namespace ring
