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

}  // namespace ring
