#include "parallel/context/overlap.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/attention/blocks.h"

namespace ring {
namespace {

// Positions [q, q_end) and [k, k_end).
struct Bounds {
  std::int64_t q, q_end, k, k_end;
  bool empty() const { return q >= q_end || k >= k_end; }

  void cut_causal() {
    q = std::max(q, k);
    k_end = std::min(k_end, q_end);
  }
};

Bounds bounds_of(const Span& q, const Span& k) {
  return {q.position, q.position + std::int64_t{q.count}, k.position, k.position + std::int64_t{k.count}};
}

Span cut(Span s, std::int64_t begin, std::int64_t end) {
  s.first += static_cast<std::int32_t>(begin - s.position);
  s.position = static_cast<std::int32_t>(begin);
  s.count = static_cast<std::int32_t>(end - begin);
  return s;
}

// Returns the part of the bounds within a branch's window, which reaches `reach` positions back.
Bounds in_window(Bounds b, std::int64_t reach, bool causal) {
  b.k = std::max(b.k, b.q - reach + 1);
  b.q_end = std::min(b.q_end, b.k_end - 1 + reach);
  if (!causal) {
    b.k_end = std::min(b.k_end, b.q_end - 1 + reach);
    b.q = std::max(b.q, b.k - reach + 1);
  }
  return b;
}

std::int64_t reach_of(const Branch& b) { return std::int64_t{b.window - 1} * b.rate + 1; }

// Segments of a branch that contain positions of both spans, counted from `origin`.
struct Segments {
  std::int64_t first, end;
};
Segments common_segments(const Bounds& b, std::int64_t origin, std::int64_t length) {
  return {(std::max(b.q, b.k) - origin) / length, (std::min(b.q_end, b.k_end) - 1 - origin) / length + 1};
}

Bounds cut(Bounds b, std::int64_t begin, std::int64_t end) {
  return {std::max(b.q, begin), std::min(b.q_end, end), std::max(b.k, begin), std::min(b.k_end, end)};
}

// Returns the bounds of the queries and keys that see each other through this branch.
Bounds seen_in_branch(const Bounds& b, const Pattern& p, const Branch& branch, std::int64_t origin) {
  const Segments s = common_segments(b, origin, branch.segment);
  if (s.first >= s.end) return {};
  const Bounds in = cut(b, origin + s.first * branch.segment, origin + s.end * branch.segment);
  const bool near = branch.window > 0 && in.k >= origin + p.sinks;
  return near ? in_window(in, reach_of(branch), p.causal) : in;
}

using Fn = std::function<void(std::int32_t, std::int32_t, std::int32_t)>;

// Sampled keys of a segment within a span, for the head whose first sample is at `offset`.
struct Samples {
  const Span& keys;
  std::int64_t segment, offset;
  std::int32_t rate;

  void call(std::int64_t begin, std::int64_t end, const Fn& fn) const {
    const std::int64_t skipped = std::max<std::int64_t>(0, begin - segment - offset);
    const std::int64_t first = segment + offset + (skipped + rate - 1) / rate * rate;
    if (first >= end) return;
    fn(static_cast<std::int32_t>(keys.first + first - keys.position),
       static_cast<std::int32_t>((end - first + rate - 1) / rate), rate);
  }
};

void needed_in_branch(const Pattern& p, const Branch& branch, const SpanPair& pair, std::int32_t head, const Fn& fn) {
  const std::int64_t origin = p.origin(pair.keys.document);
  const Bounds b = bounds_of(pair.queries, pair.keys);
  const Segments s = common_segments(b, origin, branch.segment);
  for (std::int64_t i = s.first; i < s.end; ++i) {
    const std::int64_t start = origin + i * branch.segment;
    const Samples samples{pair.keys, start, (head + p.shift) % branch.rate, branch.rate};
    const Bounds in = cut(b, start, start + branch.segment);
    if (branch.window == 0) {
      samples.call(in.k, in.k_end, fn);
      continue;
    }
    samples.call(in.k, std::min(in.k_end, origin + p.sinks), fn);
    const Bounds near = in_window(in, reach_of(branch), p.causal);
    if (!near.empty()) samples.call(near.k, near.k_end, fn);
  }
}

// Returns true if any head keeps this pair of blocks; a head that selects blocks may keep any pair.
bool any_head_keeps(const BlockPattern& blocks, std::int64_t kv_heads, std::int32_t q, std::int32_t k) {
  if (blocks.selects()) return true;
  for (std::int32_t h = 0; h < kv_heads; ++h)
    if (blocks.keeps(h, q, k)) return true;
  return false;
}

// Block numbers of a span, counted from the block in which the document starts.
struct BlockRange {
  std::int32_t first, last;
};
BlockRange blocks_between(const Pattern& p, const Span& s) {
  const std::int64_t size = p.blocks->block(), at = s.position - p.origin(s.document);
  return {static_cast<std::int32_t>(at / size), static_cast<std::int32_t>((at + s.count - 1) / size)};
}

// Calls fn(first row, count, 1) for the part of the span that lies in the block.
void call_for_block(const Pattern& p, const Span& s, std::int32_t block, const Fn& fn) {
  const std::int64_t size = p.blocks->block(), start = p.origin(s.document) + block * size;
  const std::int64_t begin = std::max<std::int64_t>(s.position, start),
                     end = std::min<std::int64_t>(s.position + std::int64_t{s.count}, start + size);
  fn(static_cast<std::int32_t>(s.first + begin - s.position), static_cast<std::int32_t>(end - begin), 1);
}

void needed_blocks(const Pattern& p, const SpanPair& pair, std::int64_t kv_heads, const Fn& fn) {
  const BlockRange queries = blocks_between(p, pair.queries), keys = blocks_between(p, pair.keys);
  for (std::int32_t k = keys.first; k <= keys.last; ++k) {
    std::int32_t q = p.causal ? std::max(k, queries.first) : queries.first;
    while (q <= queries.last && !any_head_keeps(*p.blocks, kv_heads, q, k)) ++q;
    if (q <= queries.last) call_for_block(p, pair.keys, k, fn);
  }
}

}  // namespace

SpanPair trim_to_pattern(const Pattern& p, const Span& queries, const Span& keys) {
  Bounds b = bounds_of(queries, keys);
  if (p.causal && !b.empty()) b.cut_causal();
  if (b.empty()) return {};
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  Bounds all{kNone, 0, kNone, 0};
  for (const Branch& branch : p.branches)
    if (const Bounds in = seen_in_branch(b, p, branch, p.origin(keys.document)); !in.empty())
      all = {std::min(all.q, in.q), std::max(all.q_end, in.q_end), std::min(all.k, in.k),
             std::max(all.k_end, in.k_end)};
  if (p.causal && !all.empty()) all.cut_causal();
  if (all.empty()) return {};
  return {cut(queries, all.q, all.q_end), cut(keys, all.k, all.k_end)};
}

void for_needed(const Pattern& p, const SpanPair& pair, std::int32_t head, std::int64_t kv_heads, const Fn& fn) {
  if (p.blocks) return needed_blocks(p, pair, kv_heads, fn);
  for (const Branch& branch : p.branches) needed_in_branch(p, branch, pair, head, fn);
}

void for_referenced(const Pattern& p, const SpanPair& pair, const ReferencedBlocks& referenced, std::int32_t row,
                    std::int32_t head, const Fn& fn) {
  const BlockRange queries = blocks_between(p, pair.queries), keys = blocks_between(p, pair.keys);
  std::vector<bool> any(static_cast<std::size_t>(keys.last - keys.first + 1));
  for (std::int32_t q = queries.first; q <= queries.last; ++q)
    for (std::int32_t n = referenced.first_from(row + q, head, keys.first),
                      end = referenced.first_from(row + q, head, keys.last + 1);
         n < end; ++n)
      any[referenced.row(row + q, head)[n] - static_cast<std::size_t>(keys.first)] = true;
  for (std::int32_t k = keys.first; k <= keys.last; ++k)
    if (any[static_cast<std::size_t>(k - keys.first)]) call_for_block(p, pair.keys, k, fn);
}

}  // namespace ring
