#include "parallel/context/balance.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "core/checked.h"
#include "kernels/attention/pairs.h"

namespace ring {
namespace {

// A window whose work differs from the mean by less than this fraction of the mean is as good as the nearest window.
// The first such window is taken, so that evenly distributed work is divided into contiguous parts.
constexpr double kTolerance = 0.005;

// Returns the first block of a window of `count` blocks whose work is nearest to the mean. The blocks form a circle. Of
// the windows at multiples of `count`, one has at least the mean work, and one has at most the mean work. From one
// window to the next, the work changes by at most one block's work. Some window therefore differs from the mean by at
// most half a block's work.
std::size_t window_near_mean(const std::vector<double>& circle, std::size_t count) {
  const std::size_t n = circle.size();
  const double mean =
      std::accumulate(circle.begin(), circle.end(), 0.0) * static_cast<double>(count) / static_cast<double>(n);
  double sum = std::accumulate(circle.begin(), circle.begin() + static_cast<std::ptrdiff_t>(count), 0.0);
  std::vector<double> distance;
  for (std::size_t begin = 0; begin < n; ++begin) {
    distance.push_back(std::abs(sum - mean));
    sum += circle[(begin + count) % n] - circle[begin];
  }
  const double near = std::max(std::ranges::min(distance), kTolerance * mean);
  return static_cast<std::size_t>(std::ranges::find_if(distance, [&](double d) { return d <= near; }) -
                                  distance.begin());
}

}  // namespace

std::vector<std::vector<std::int64_t>> divide_evenly(const std::vector<double>& work, int ranks) {
  RING_CHECK(ranks >= 1 && std::ssize(work) % ranks == 0, "balanced layout: ", work.size(), " blocks for ", ranks,
             " ranks");
  const std::size_t count = work.size() / static_cast<std::size_t>(ranks);
  std::vector<std::int64_t> left(work.size());  // the circle of blocks that no rank has yet
  std::iota(left.begin(), left.end(), 0);
  std::vector<double> circle = work;
  std::vector<std::vector<std::int64_t>> blocks;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto begin = static_cast<std::ptrdiff_t>(window_near_mean(circle, count));
    std::rotate(left.begin(), left.begin() + begin, left.end());
    std::rotate(circle.begin(), circle.begin() + begin, circle.end());
    const auto end = static_cast<std::ptrdiff_t>(count);
    blocks.emplace_back(left.begin(), left.begin() + end);
    std::ranges::sort(blocks.back());
    left.erase(left.begin(), left.begin() + end);
    circle.erase(circle.begin(), circle.begin() + end);
  }
  return blocks;
}

PairCounter::PairCounter(const std::vector<Pattern>& layers, std::int64_t kv_heads) : kv_heads_(kv_heads) {
  for (const Pattern& p : layers) {
    const auto known = std::ranges::find_if(layers_, [&](const Layers& l) { return same_pairs(l.pattern, p); });
    if (known == layers_.end())
      layers_.push_back({p, 1});
    else
      ++known->count;
  }
}

std::vector<double> PairCounter::pairs_by_block(const std::vector<Span>& documents, std::int64_t length,
                                                std::int64_t block) const {
  std::vector<double> pairs;
  auto from = documents.begin();
  for (std::int64_t begin = 0; begin < length; begin += block) {
    const auto first = narrow<std::int32_t>(begin), end = narrow<std::int32_t>(begin + block);
    while (from != documents.end() && from->first + from->count <= first) ++from;
    std::vector<Span> queries, keys;
    for (auto d = from; d != documents.end() && d->first < end; ++d) {
      const std::int32_t a = std::max(d->first, first), b = std::min(d->first + d->count, end);
      queries.push_back({a, b - a, d->position + a - d->first, d->document});
      keys.push_back(*d);
    }
    double sum = 0;
    for (const Layers& l : layers_) sum += l.count * kept_pairs(l.pattern, queries, keys, kv_heads_);
    pairs.push_back(sum);
  }
  return pairs;
}

}  // namespace ring
