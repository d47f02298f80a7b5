#include "kernels/attention/selection.h"

#include <algorithm>

#include "core/check.h"
#include "core/checked.h"
#include "kernels/attention/block_pool.h"
#include "kernels/attention/block_select.h"
#include "kernels/attention/blocks.h"

namespace ring {

std::int32_t blocks_of(const Pattern& pattern, const Span& s) {
  if (s.count == 0) return 0;
  const std::int64_t size = pattern.blocks->block(), end = s.position - pattern.origin(s.document) + s.count;
  return narrow<std::int32_t>((end + size - 1) / size);
}

std::vector<std::int32_t> first_blocks(const Pattern& pattern, const std::vector<Span>& spans) {
  std::vector<std::int32_t> first = {0};
  for (const Span& s : spans) first.push_back(narrow<std::int32_t>(std::int64_t{first.back()} + blocks_of(pattern, s)));
  return first;
}

void check(const BlockSelection& s, const Pattern& pattern, const std::vector<Span>& queries,
           const std::vector<Span>& keys, std::int64_t kv_heads, const char* op) {
  RING_CHECK(s.bits.defined() == pattern.selects(), op,
             s.bits.defined() ? ": a selection for a pattern that has rules for all heads"
                              : ": a pattern that selects blocks, without a selection");
  if (!s.bits.defined() || queries.empty()) return;
  const bool whole = s.rows.empty();
  RING_CHECK(!whole || queries == keys, op,
             ": a selection is for whole documents, but spans of queries and keys differ");
  RING_CHECK(whole || s.rows.size() == queries.size(), op, ": a selection has rows for ", s.rows.size(), " of ",
             queries.size(), " spans");
  std::int32_t rows = 0, max = 0;
  for (std::size_t b = 0; b < queries.size(); ++b) {
    const Span& q = queries[b];
    RING_CHECK(!whole || q.count == 0 || q.position == q.document, op,
               ": a selection is for whole documents, not from position ", q.position - q.document, " on");
    const std::int32_t blocks = blocks_of(pattern, q);
    RING_CHECK(whole || s.rows[b] >= 0, op, ": a selection has no row ", s.rows[b]);
    rows = whole ? rows + blocks : std::max(rows, blocks == 0 ? 0 : s.rows[b] + blocks);
    max = std::max(max, blocks);
  }
  RING_CHECK(s.bits.dtype() == DType::i32 && s.bits.is_contiguous() && s.bits.shape().size() == 3 &&
                 (whole ? s.bits.dim(0) == rows : s.bits.dim(0) >= rows) && s.bits.dim(1) == kv_heads &&
                 s.bits.dim(2) * 32 >= max,
             op, ": the selection is ", describe(s.bits), ", expected i32[", rows, ", ", kv_heads, ", ",
             (max + 31) / 32, "]");
}

BlockSelection select_blocks(const Pattern& pattern, const Tensor& q, const Tensor& k, float scale,
                             const std::vector<Span>& spans, const ExecContext& ctx) {
  if (!pattern.selects()) return {};
  const std::vector<std::int32_t> first = first_blocks(pattern, spans);
  const std::int32_t rows = first.back(), block = pattern.blocks->block();
  std::int32_t max = 0;
  std::vector<SelectedRows> documents;
  for (std::size_t b = 0; b < spans.size(); ++b) {
    const std::int32_t count = first[b + 1] - first[b];
    documents.push_back({.queries = first[b], .keys = first[b], .bits = first[b], .begin = 0, .end = count});
    max = std::max(max, count);
  }
  const std::int64_t kv_heads = k.dim(1);
  const Tensor queries = ctx.empty({rows, kv_heads, k.dim(2)}), keys = ctx.empty({rows, kv_heads, k.dim(2)});
  const auto origin = [&](std::int32_t document) { return narrow<std::int32_t>(pattern.origin(document)); };
  std::vector<PoolSegment> pooled;
  for (std::size_t b = 0; b < spans.size(); ++b)
    pooled.push_back({.first = spans[b].first,
                      .count = spans[b].count,
                      .leading_gap = spans[b].position - origin(spans[b].document),
                      .out = first[b]});
  block_pool_kernel({q, queries, pooled, block}, ctx);
  block_pool_kernel({k, keys, pooled, block}, ctx);
  BlockSelection made{ctx.empty({rows, kv_heads, (max + 31) / 32}, DType::i32)};
  block_select_kernel({.queries = queries,
                       .keys = keys,
                       .bits = made.bits,
                       .documents = std::move(documents),
                       .blocks = pattern.blocks,
                       .scale = scale_of_means(scale, q.dim(1), kv_heads)},
                      ctx);
  return made;
}

}  // namespace ring
