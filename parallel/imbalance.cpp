#include "parallel/imbalance.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "core/checked.h"
#include "kernels/attention/pairs.h"

namespace ring {

double largest_over_mean(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return sum > 0 ? std::ranges::max(values) * static_cast<double>(values.size()) / sum : 1;
}

std::vector<double> pairs_by_rank(const Pattern& pattern, std::int64_t kv_heads, std::int64_t slices,
                                  const ContextLayout& layout) {
  RING_CHECK(kv_heads % slices == 0, "pairs by rank: ", slices, " slices do not divide ", kv_heads, " KV heads");
  const std::int64_t heads = kv_heads / slices;
  const Span whole{.count = narrow<std::int32_t>(layout.length())};
  std::vector<double> pairs;
  for (std::int64_t s = 0; s < slices; ++s) {
    const Pattern own = of_heads(pattern, {s * heads, heads});
    for (int r = 0; r < layout.ranks(); ++r) {
      std::vector<Span> rows;
      for (const ContextLayout::Chunk& c : layout.chunks(r)) {
        const auto begin = narrow<std::int32_t>(c.begin), end = narrow<std::int32_t>(c.end);
        rows.push_back({.first = begin, .count = end - begin, .position = begin});
      }
      const std::vector<Span> keys(rows.size(), whole);
      pairs.push_back(static_cast<double>(heads) * kept_pairs(own, rows, keys, heads));
    }
  }
  return pairs;
}

}  // namespace ring
