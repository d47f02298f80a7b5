#include "parallel/imbalance.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "core/checked.h"
#include "parallel/context/plan.h"

namespace ring {

double largest_over_mean(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return sum > 0 ? std::ranges::max(values) * static_cast<double>(values.size()) / sum : 1;
}

std::vector<double> pairs_by_rank(const Pattern& pattern, std::int64_t kv_heads, std::int64_t slices,
                                  const ContextShards& shards) {
  RING_CHECK(kv_heads % slices == 0, "pairs by rank: ", slices, " slices do not divide ", kv_heads, " KV heads");
  const std::int64_t heads = kv_heads / slices;
  std::vector<double> pairs;
  for (std::int64_t s = 0; s < slices; ++s) {
    const Pattern own = of_heads(pattern, {s * heads, heads});
    for (int r = 0; r < shards.ranks(); ++r) pairs.push_back(pairs_of_rank(shards, r, own, heads));
  }
  return pairs;
}

std::vector<double> pairs_by_rank(const Pattern& pattern, std::int64_t kv_heads, std::int64_t slices,
                                  const ContextLayout& layout) {
  return pairs_by_rank(pattern, kv_heads, slices,
                       layout.shards(0, 1, {{.count = narrow<std::int32_t>(layout.length())}}));
}

}  // namespace ring
