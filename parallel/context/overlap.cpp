#include "parallel/context/overlap.h"

#include <algorithm>
#include <limits>

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

// The keys that the window reaches, for queries that it serves.
Bounds in_window(Bounds b, const Pattern& p) {
  b.k = std::max(b.k, b.q - p.window + 1);
  b.q_end = std::min(b.q_end, b.k_end - 1 + p.window);
  if (!p.causal) {
    b.k_end = std::min(b.k_end, b.q_end - 1 + p.window);
    b.q = std::max(b.q, b.k - p.window + 1);
  }
  return b;
}

std::int64_t sink_end(const Pattern& p, const Span& keys) { return keys.document + std::int64_t{p.sinks}; }

// Segments of a branch that both have positions in.
struct Segments {
  std::int64_t first, end;
};
Segments common_segments(const Bounds& b, std::int64_t length) {
  return {std::max(b.q, b.k) / length, std::min((b.q_end - 1) / length, (b.k_end - 1) / length) + 1};
}

Bounds in_segments(const Bounds& b, const Pattern& p) {
  Bounds all{std::numeric_limits<std::int64_t>::max(), 0, std::numeric_limits<std::int64_t>::max(), 0};
  for (const Branch& branch : p.branches) {
    const Segments s = common_segments(b, branch.segment);
    if (s.first >= s.end) continue;
    const std::int64_t begin = s.first * branch.segment, end = s.end * branch.segment;
    all.q = std::min(all.q, std::max(b.q, begin)), all.q_end = std::max(all.q_end, std::min(b.q_end, end));
    all.k = std::min(all.k, std::max(b.k, begin)), all.k_end = std::max(all.k_end, std::min(b.k_end, end));
  }
  if (p.causal && !all.empty()) all.cut_causal();
  return all;
}

using Fn = std::function<void(std::int32_t, std::int32_t, std::int32_t)>;

void needed_in_window(const Pattern& p, const SpanPair& pair, const Fn& fn) {
  const Bounds all = bounds_of(pair.queries, pair.keys), near = in_window(all, p);
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    const Span s = cut(pair.keys, begin, end);
    fn(s.first, s.count, 1);
  };
  add(all.k, std::min(all.k_end, sink_end(p, pair.keys)));
  if (!near.empty()) add(near.k, near.k_end);
}

void needed_samples(const Pattern& p, const SpanPair& pair, std::int32_t head, const Fn& fn) {
  const Bounds b = bounds_of(pair.queries, pair.keys);
  for (const Branch& branch : p.branches) {
    const std::int64_t offset = (head + p.shift) % branch.rate;
    const Segments s = common_segments(b, branch.segment);
    for (std::int64_t i = s.first; i < s.end; ++i) {
      const std::int64_t start = i * branch.segment, skipped = std::max<std::int64_t>(0, b.k - start - offset);
      const std::int64_t first = start + offset + (skipped + branch.rate - 1) / branch.rate * branch.rate;
      const std::int64_t end = std::min(b.k_end, start + branch.segment);
      if (first >= end) continue;
      fn(static_cast<std::int32_t>(pair.keys.first + first - b.k),
         static_cast<std::int32_t>((end - first + branch.rate - 1) / branch.rate), branch.rate);
    }
  }
}

bool any_head_keeps(const BlockPattern& blocks, std::int64_t kv_heads, std::int32_t q, std::int32_t k) {
  for (std::int32_t h = 0; h < kv_heads; ++h)
    if (blocks.keeps(h, q, k)) return true;
  return false;
}

void needed_blocks(const Pattern& p, const SpanPair& pair, std::int64_t kv_heads, const Fn& fn) {
  const std::int64_t size = p.blocks->block(), origin = pair.keys.document / size * size;
  const Bounds b = bounds_of(pair.queries, pair.keys);
  const auto block = [&](std::int64_t position) { return static_cast<std::int32_t>((position - origin) / size); };
  for (std::int32_t k = block(b.k); k <= block(b.k_end - 1); ++k) {
    const std::int32_t from = p.causal ? std::max(k, block(b.q)) : block(b.q), last = block(b.q_end - 1);
    std::int32_t q = from;
    while (q <= last && !any_head_keeps(*p.blocks, kv_heads, q, k)) ++q;
    if (q > last) continue;
    const std::int64_t begin = std::max(b.k, origin + k * size), end = std::min(b.k_end, origin + (k + 1) * size);
    fn(static_cast<std::int32_t>(pair.keys.first + begin - b.k), static_cast<std::int32_t>(end - begin), 1);
  }
}

}  // namespace

SpanPair seen_part(const Pattern& p, const Span& queries, const Span& keys) {
  Bounds b = bounds_of(queries, keys);
  if (p.causal && !b.empty()) b.cut_causal();
  if (!b.empty() && p.kind == AttentionKind::window && b.k >= sink_end(p, keys)) b = in_window(b, p);
  if (!b.empty() && p.kind == AttentionKind::dilated) b = in_segments(b, p);
  if (b.empty()) return {};
  return {cut(queries, b.q, b.q_end), cut(keys, b.k, b.k_end)};
}

void for_needed(const Pattern& p, const SpanPair& pair, std::int32_t head, std::int64_t kv_heads, const Fn& fn) {
  switch (p.kind) {
    case AttentionKind::dense: return fn(pair.keys.first, pair.keys.count, 1);
    case AttentionKind::window: return needed_in_window(p, pair, fn);
    case AttentionKind::dilated: return needed_samples(p, pair, head, fn);
    case AttentionKind::block_sparse: return needed_blocks(p, pair, kv_heads, fn);
  }
}

}  // namespace ring
