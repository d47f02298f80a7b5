#include "kernels/attention/head_segment.h"

#include <algorithm>

#include "kernels/attention/selection.h"

namespace ring {
namespace {

// The part of a span in the segment [start, start + length), with positions counted from the segment's start.
struct Part {
  std::int32_t row, first, end;  // row of the segment's position 0; positions [first, end)
};
// Returns the part of `s` in the segment; `start` counts from `origin`.
Part part_of(const Span& s, std::int64_t origin, std::int64_t start, std::int64_t length) {
  const std::int64_t begin = s.position - origin, end = begin + s.count;
  return {static_cast<std::int32_t>(s.first - begin + start),
          static_cast<std::int32_t>(std::clamp<std::int64_t>(begin - start, 0, length)),
          static_cast<std::int32_t>(std::clamp<std::int64_t>(end - start, 0, length))};
}

}  // namespace

std::vector<BranchPass> passes_of(const Pattern& p) {
  constexpr std::int32_t kWidest = 1 << 30;  // keeps a position plus a window within 32 bits
  std::vector<BranchPass> passes;
  for (std::size_t i = p.branches.size(); i-- > 0;) {
    const Branch& b = p.branches[i];
    BranchPass& pass = passes.emplace_back();
    pass.segment = b.segment;
    pass.rate = b.rate;
    pass.finer = p.dedup && i > 0 ? p.branches[i - 1].segment : 0;
    pass.window = std::min(b.window, kWidest);
    pass.shift = p.shift;
    pass.pool = p.pool;
    pass.causal = p.causal;
    pass.listed = p.blocks != nullptr;
  }
  return passes;
}

std::vector<SegmentPair> segment_pairs_of(const BranchPass& pass, const Pattern& pattern,
                                          const std::vector<Span>& queries, const std::vector<Span>& keys,
                                          std::vector<std::int32_t> block_rows) {
  std::vector<SegmentPair> pieces;
  if (block_rows.empty())
    block_rows = pattern.selects() ? first_blocks(pattern, queries) : std::vector<std::int32_t>(queries.size());
  for (std::size_t b = 0; b < queries.size(); ++b) {
    const Span &q = queries[b], &k = keys[b];
    const std::int64_t origin = pattern.origin(q.document), length = pass.segment;
    std::int64_t first = std::numeric_limits<std::int64_t>::max(), end = 0;
    for (const Span* s : {&q, &k})
      if (s->count > 0) {
        first = std::min<std::int64_t>(first, s->position - origin);
        end = std::max<std::int64_t>(end, s->position - origin + s->count);
      }
    for (std::int64_t start = first / length * length; start < end; start += length) {
      const Part x = part_of(q, origin, start, length), y = part_of(k, origin, start, length);
      if (x.first == x.end && y.first == y.end) continue;
      const std::int64_t sinks = std::clamp<std::int64_t>(pattern.sinks - start, 0, length);
      pieces.push_back({x.row, x.first, x.end, y.row, y.first, y.end, static_cast<std::int32_t>(sinks),
                        static_cast<std::int32_t>(origin + start), block_rows[b]});
    }
  }
  return pieces;
}

}  // namespace ring
