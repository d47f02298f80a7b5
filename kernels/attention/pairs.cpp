#include "kernels/attention/pairs.h"

#include <algorithm>

#include "kernels/attention/blocks.h"
#include "kernels/attention/head_segment.h"

namespace ring {
namespace {

// Counts one segment pair as a head with this offset sees it.
double pairs_of(const BranchPass& pass, const SegmentPair& piece, std::int32_t offset) {
  const HeadSegment s(pass, piece, offset);
  double pairs = 0;
  for (std::int32_t j = s.q_first; j < s.q_end; ++j) {
    const Columns c = s.columns<Stationary::q>(j);
    const std::int32_t hole = std::max(c.hole, c.first), hole_end = std::min(c.hole_end, c.end);
    pairs += std::max(0, c.end - c.first) - std::max(0, hole_end - hole);
  }
  return pairs;
}

double pairs_of(const BlockPattern& blocks, const SegmentPair& p, std::int32_t kv_head, bool causal) {
  double pairs = 0;
  const std::int32_t size = blocks.block();
  for (std::int32_t q = p.q_first / size; q * size < p.q_end; ++q)
    for (std::int32_t k = p.k_first / size, end = causal ? q + 1 : kNoSegment; k < end && k * size < p.k_end; ++k) {
      if (!blocks.keeps(kv_head, q, k)) continue;
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

}  // namespace

double kept_pairs(const Pattern& pattern, const std::vector<Span>& queries, const std::vector<Span>& keys,
                  std::int64_t kv_heads) {
  double pairs = 0;
  for (const BranchPass& pass : passes_of(pattern))
    for (const SegmentPair& piece : segment_pairs_of(pass, pattern, queries, keys)) {
      const auto heads =
          static_cast<std::int32_t>(pass.listed ? kv_heads : std::min<std::int64_t>(kv_heads, pass.rate));
      for (std::int32_t h = 0; h < heads; ++h) {
        // Heads whose offsets are the same see the same pairs.
        const double times = pass.listed ? 1 : static_cast<double>((kv_heads - h + pass.rate - 1) / pass.rate);
        pairs += times * (pass.listed ? pairs_of(*pattern.blocks, piece, h, pattern.causal)
                                      : pairs_of(pass, piece, pass.offset(h)));
      }
    }
  return pairs / static_cast<double>(kv_heads);
}

}  // namespace ring
