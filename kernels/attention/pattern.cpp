#include "kernels/attention/pattern.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/attention/blocks.h"

namespace ring {
namespace {

void check_nested(const Pattern& p, const char* op) {
  for (std::size_t i = 0; i < p.branches.size(); ++i) {
    const Branch b = p.branches[i], next = i + 1 < p.branches.size() ? p.branches[i + 1] : b;
    RING_CHECK(b.segment % b.rate == 0 && next.segment % b.segment == 0 && next.rate % b.rate == 0, op,
               ": dedup needs nested branches: segment ", b.segment, " and rate ", b.rate,
               " must divide the next ones (", next.segment, ", ", next.rate, "), and the rate its segment");
    RING_CHECK(b.window == 0, op, ": dedup needs branches without windows, not one of ", b.window);
  }
}

void check_branches(const Pattern& p, const char* op) {
  RING_CHECK(!p.branches.empty() && p.branches[0].rate == 1, op, ": the first branch needs rate 1");
  for (const Branch& b : p.branches) {
    RING_CHECK(b.rate >= 1 && b.rate <= b.segment, op, ": a branch of segment ", b.segment, " and rate ", b.rate,
               ": the rate must be between 1 and the segment");
    RING_CHECK(b.window >= 0, op, ": a branch with a window of ", b.window);
  }
  if (p.dedup) check_nested(p, op);
}

void check_pools(const Pattern& p, const char* op) {
  const auto is_pool = [](std::int32_t size) { return size > 1; };
  RING_CHECK(std::ranges::all_of(p.pools, is_pool) && (p.pool == 0 || is_pool(p.pool)), op,
             ": a pool has 2 tokens or more");
  RING_CHECK(p.causal || (p.pools.empty() && p.pool == 0), op, ": pools require causal attention");
  RING_CHECK(p.pool == 0 || same_pairs(p, {.pool = p.pool}), op, ": keys that are pools of ", p.pool,
             " tokens cannot have another pattern");
}

bool same_blocks(const Pattern& a, const Pattern& b) {
  return a.blocks == b.blocks || (a.blocks && b.blocks && a.blocks->version() == b.blocks->version());
}

}  // namespace

bool Pattern::is_interval() const {
  return !blocks && pool == 0 && branches.size() == 1 && branches[0].segment == kNoSegment && branches[0].rate == 1;
}

bool Pattern::has_windows() const {
  return std::ranges::any_of(branches, [](const Branch& b) { return b.window > 0; });
}

bool Pattern::has_samples() const {
  return std::ranges::any_of(branches, [](const Branch& b) { return b.rate > 1; });
}

bool Pattern::selects() const { return blocks && blocks->selects(); }

std::int64_t Pattern::origin(std::int32_t document) const {
  if (blocks) return document / blocks->block() * blocks->block();
  return from_row ? 0 : document;
}

bool same_pairs(const Pattern& a, const Pattern& b) {
  if (a.causal != b.causal || a.branches != b.branches || a.sinks != b.sinks || a.dedup != b.dedup ||
      a.from_row != b.from_row || a.pools != b.pools || a.pool != b.pool || !same_blocks(a, b))
    return false;
  return std::ranges::all_of(a.branches, [&](const Branch& x) { return a.shift % x.rate == b.shift % x.rate; });
}

Pattern of_heads(Pattern p, KvHeads heads) {
  const auto first = static_cast<std::int32_t>(heads.first), count = static_cast<std::int32_t>(heads.count);
  p.shift += first;
  if (p.blocks) p.blocks = std::make_shared<BlockPattern>(p.blocks->of_heads(first, count));
  return p;
}

void check(const Pattern& p, const char* op) {
  check_branches(p, op);
  RING_CHECK(p.sinks >= 0 && p.shift >= 0, op, ": ", p.sinks, " sinks and a shift of ", p.shift);
  RING_CHECK(!p.blocks || (p.branches == std::vector{Branch{}} && !p.from_row), op,
             ": a block pattern cannot have branches or positions of its own");
  RING_CHECK(p.causal || !p.selects(), op, ": selecting blocks by content requires causal attention");
  check_pools(p, op);
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

std::int32_t count_pools(const Span& s, std::int32_t pool) { return s.count == 0 ? 0 : (s.count - 1) / pool; }

std::vector<Span> pool_spans(const std::vector<Span>& documents, std::int32_t pool) {
  std::vector<Span> spans;
  std::int32_t first = 0;
  for (const Span& s : documents) {
    RING_CHECK(s.count == 0 || s.position == s.document, "attention: pools of a document from its token ",
               s.position - s.document, " on: pools are made of whole documents");
    spans.push_back({.first = first, .count = count_pools(s, pool), .position = s.document, .document = s.document});
    first += count_pools(s, pool);
  }
  return spans;
}

}  // namespace ring
