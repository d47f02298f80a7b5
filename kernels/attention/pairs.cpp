#include "kernels/attention/pairs.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "kernels/attention/blocks.h"
#include "kernels/attention/head_segment.h"

namespace ring {
namespace {

// Returns the number of columns that a row sees: [first, end) without [hole, hole_end).
std::int64_t count(const Columns& c) {
  const std::int32_t hole = std::max(c.hole, c.first), hole_end = std::min(c.hole_end, c.end);
  return std::max(0, c.end - c.first) - std::max(0, hole_end - hole);
}

// Returns true if count() is linear in the row, from the row that sees columns a to the row, `rows` rows later, that
// sees columns b. From one row to the next, each bound stays or rises by one; only the holes of a finer branch jump.
// Over the whole range, a bound is therefore linear if it never rises or always rises. If one of two linear bounds is
// larger at both ends, it is larger in between.
bool is_line(const Columns& a, const Columns& b, std::int32_t rows, bool jumps) {
  const auto line = [&](std::int32_t x, std::int32_t y) { return x == y || y - x == rows; };
  const auto ordered = [](std::int32_t x0, std::int32_t y0, std::int32_t x1, std::int32_t y1) {
    return (x0 <= y0 && x1 <= y1) || (x0 >= y0 && x1 >= y1);
  };
  if (!line(a.first, b.first) || !line(a.end, b.end)) return false;
  if (jumps ? a.hole != b.hole || a.hole_end != b.hole_end : !line(a.hole, b.hole) || !line(a.hole_end, b.hole_end))
    return false;
  const std::int32_t from_a = std::max(a.hole, a.first), from_b = std::max(b.hole, b.first);
  const std::int32_t to_a = std::min(a.hole_end, a.end), to_b = std::min(b.hole_end, b.end);
  return ordered(a.first, a.end, b.first, b.end) && ordered(a.hole, a.first, b.hole, b.first) &&
         ordered(a.hole_end, a.end, b.hole_end, b.end) && ordered(from_a, to_a, from_b, to_b);
}

// Counts the pairs of queries [first, last]: bisects the range until count() is linear.
double pairs_of_rows(const HeadSegment& s, std::int32_t first, std::int32_t last) {
  const Columns a = s.columns<Stationary::q>(first), b = s.columns<Stationary::q>(last);
  const std::int32_t rows = last - first;
  if (rows <= 1 || is_line(a, b, rows, s.finer > 0)) {
    const auto ends = static_cast<double>(count(a) + count(b));
    return rows == 0 ? ends / 2 : ends * (static_cast<double>(rows) + 1) / 2;
  }
  const std::int32_t middle = first + rows / 2;
  return pairs_of_rows(s, first, middle) + pairs_of_rows(s, middle + 1, last);
}

// Counts the pairs of queries and pools, pool by pool, because there are few pools.
double pairs_of_pools(const HeadSegment& s) {
  double pairs = 0;
  for (std::int32_t j = s.k_first; j < s.k_end; ++j) pairs += static_cast<double>(count(s.columns<Stationary::kv>(j)));
  return pairs;
}

// Counts the pairs of one segment pair for heads whose samples start at `offset`.
double pairs_of(const BranchPass& pass, const SegmentPair& piece, std::int32_t offset) {
  const HeadSegment s(pass, piece, offset);
  if (pass.pool > 0) return pairs_of_pools(s);
  return s.q_first < s.q_end ? pairs_of_rows(s, s.q_first, s.q_end - 1) : 0;
}

double pairs_of(const BlockRule& rule, std::int32_t size, const SegmentPair& p, std::int32_t kv_head, bool causal) {
  double pairs = 0;
  for (std::int32_t q = p.q_first / size; q * size < p.q_end; ++q)
    for (std::int32_t k = p.k_first / size, end = causal ? q + 1 : kNoSegment; k < end && k * size < p.k_end; ++k) {
      if (!rule.keeps(kv_head, q, k)) continue;
      const std::int32_t first = std::max(q * size, p.q_first), last = std::min((q + 1) * size, p.q_end);
      const std::int32_t k_first = std::max(k * size, p.k_first), k_end = std::min((k + 1) * size, p.k_end);
      if (!causal || k_end <= first + 1) {
        pairs += static_cast<double>(last - first) * std::max(0, k_end - k_first);
        continue;
      }
      for (std::int32_t t = first; t < last; ++t) pairs += std::max(0, std::min(t + 1, k_end) - k_first);
    }
  return pairs;
}

// Counts the pairs of all heads. Heads with the same rule keep the same blocks, unless the rule is random.
double pairs_of_heads(const BlockPattern& blocks, const SegmentPair& p, std::int64_t kv_heads, bool causal) {
  std::map<std::int32_t, double> of_rule;
  double pairs = 0;
  for (std::int32_t h = 0; h < kv_heads; ++h) {
    const BlockRule& rule = blocks.rule(h);
    const bool alike = rule.kind != BlockRuleKind::random && of_rule.count(blocks.rule_index(h));
    double& own = of_rule[blocks.rule_index(h)];
    if (!alike) own = pairs_of(rule, blocks.block(), p, h, causal);
    pairs += own;
  }
  return pairs;
}

// Caches pair counts, because layers, and the many steps that a planner simulates, have the same blocks. Thread-safe.
class CountedBlocks {
 public:
  double operator()(const BlockPattern& blocks, const SegmentPair& p, std::int64_t kv_heads, bool causal) {
    const Key key{
        static_cast<std::int64_t>(blocks.version()), p.q_first, p.q_end, p.k_first, p.k_end, kv_heads, causal};
    const std::lock_guard lock(mutex_);
    if (const auto found = pairs_.find(key); found != pairs_.end()) return found->second;
    if (pairs_.size() >= kMost) pairs_.clear();
    return pairs_[key] = pairs_of_heads(blocks, p, kv_heads, causal);
  }

 private:
  using Key = std::array<std::int64_t, 7>;
  static constexpr std::size_t kMost = 1024;  // bounds the cache, since documents differ from step to step
  std::mutex mutex_;
  std::map<Key, double> pairs_;
};

}  // namespace

double kept_pairs(const Pattern& pattern, const std::vector<Span>& queries, const std::vector<Span>& keys,
                  std::int64_t kv_heads) {
  static CountedBlocks counted;
  double pairs = 0;
  for (const BranchPass& pass : passes_of(pattern))
    for (const SegmentPair& piece : segment_pairs_of(pass, pattern, queries, keys)) {
      if (pass.listed) {
        pairs += counted(*pattern.blocks, piece, kv_heads, pattern.causal);
        continue;
      }
      for (std::int32_t h = 0; h < std::min<std::int64_t>(kv_heads, pass.rate); ++h) {
        // Heads with the same offset see the same pairs.
        const auto times = static_cast<double>((kv_heads - h + pass.rate - 1) / pass.rate);
        pairs += times * pairs_of(pass, piece, pass.offset(h));
      }
    }
  pairs /= static_cast<double>(kv_heads);
  for (const std::int32_t pool : pattern.pools)
    pairs += kept_pairs({.pool = pool}, queries, pool_spans(keys, pool), kv_heads);
  return pairs;
}

}  // namespace ring
