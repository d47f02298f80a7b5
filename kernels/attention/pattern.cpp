#include "kernels/attention/pattern.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/attention/blocks.h"

namespace ring {
namespace {

void check_branches(const Pattern& p, const char* op) {
  RING_CHECK(!p.branches.empty() && p.branches[0].rate == 1, op, ": the first dilated branch needs rate 1");
  for (const Branch& b : p.branches)
    RING_CHECK(b.rate >= 1 && b.rate <= b.segment, op, ": a dilated branch of segment ", b.segment, " and rate ",
               b.rate, ": the rate must lie between 1 and the segment");
  if (!p.dedup) return;
  for (std::size_t i = 0; i < p.branches.size(); ++i) {
    const Branch b = p.branches[i], next = i + 1 < p.branches.size() ? p.branches[i + 1] : b;
    RING_CHECK(b.segment % b.rate == 0 && next.segment % b.segment == 0 && next.rate % b.rate == 0, op,
               ": dedup needs nested branches: segment ", b.segment, " and rate ", b.rate,
               " must divide the next ones (", next.segment, ", ", next.rate, "), and the rate its segment");
  }
}

// Of one segment pair as a head with this offset sees it.
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

Pattern of_heads(Pattern p, KvHeads heads) {
  const auto first = static_cast<std::int32_t>(heads.first), count = static_cast<std::int32_t>(heads.count);
  p.shift += first;
  if (p.blocks) p.blocks = std::make_shared<BlockPattern>(p.blocks->of_heads(first, count));
  return p;
}

void check(const Pattern& p, const char* op) {
  if (p.kind == AttentionKind::window)
    RING_CHECK(p.window >= 1 && p.sinks >= 0, op, ": a window of ", p.window, " with ", p.sinks, " sinks");
  if (p.kind == AttentionKind::dilated) check_branches(p, op);
  RING_CHECK(p.shift >= 0, op, ": a shift of ", p.shift);
  RING_CHECK(p.kind != AttentionKind::block_sparse || p.blocks, op, ": block-sparse attention without blocks");
}

std::vector<Span> spans_of(const std::vector<std::int32_t>& offsets, const std::vector<std::int32_t>& rows) {
  std::vector<Span> spans;
  for (std::size_t b = 0; b + 1 < offsets.size(); ++b) {
    Span s{offsets[b], offsets[b + 1] - offsets[b], 0, 0};
    const auto row = std::upper_bound(rows.begin(), rows.end(), s.first);
    if (row != rows.begin()) s.position = s.document = s.first - *(row - 1);
    spans.push_back(s);
  }
  return spans;
}

std::vector<Span> sorted_by_row(std::vector<Span> spans) {
  std::erase_if(spans, [](const Span& s) { return s.count == 0; });
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.first < b.first; });
  return spans;
}

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
