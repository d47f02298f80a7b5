#include "model/attention/selected/selection_cache.h"

#include <algorithm>

#include "core/checked.h"

namespace ring {

SelectionCache::SelectionCache(const Pattern& pattern, std::int64_t batch, std::int64_t capacity, std::int64_t heads,
                               std::int64_t kv_heads, std::int64_t head_dim, const ExecContext& ctx)
    : blocks_(pattern.blocks), sequences_(static_cast<std::size_t>(batch)) {
  most_ = narrow<std::int32_t>((capacity + block() - 1) / block());
  const auto room = [&](const Shape& shape, DType type = DType::f32) { return ctx.empty(shape, type, Lifetime::run); };
  queries_ = room({batch, 2 * block(), heads, head_dim}, activation_type(ctx.precision));
  key_means_ = room({batch * most_, kv_heads, head_dim});
  query_means_ = room({batch, kv_heads, head_dim});
  // Capacity for all blocks, because some steps keep more blocks than the pattern says, e.g. while indexers warm up.
  selected_ = ctx.zeros({batch, kv_heads, most_}, DType::i32, Lifetime::run);
}

void SelectionCache::append(const Tensor& q, const Sequences& seqs, const std::vector<std::int32_t>& lengths,
                            const ExecContext& ctx) {
  RING_CHECK(q.stride(1) == q.dim(2) && q.dtype() == queries_.dtype(), "a cache of ", describe(queries_),
             " requires queries of its type whose heads are adjacent, got ", describe(q));
  const std::int64_t rows = queries_.dim(1);
  const std::size_t size = size_of(q.dtype()), row_bytes = static_cast<std::size_t>(q.dim(1) * q.dim(2)) * size;
  for (std::size_t b = 0; b < sequences_.size(); ++b) {
    const std::int64_t before = lengths[b], end = before + seqs.offsets[b + 1] - seqs.offsets[b];
    for (std::int64_t t = std::max(before, end - rows); t < end;) {
      const std::int64_t row = t % rows, count = std::min(end - t, rows - row);
      ctx.stream.impl().copy_rows(queries_.narrow(0, static_cast<std::int64_t>(b), 1).narrow(1, row, 1).raw(),
                                  row_bytes, q.narrow(0, seqs.offsets[b] + t - before, 1).raw(),
                                  static_cast<std::size_t>(q.stride(0)) * size, row_bytes,
                                  static_cast<std::size_t>(count));
      t += count;
    }
  }
}

void SelectionCache::pool(std::size_t sequence, std::int32_t own, std::int64_t key_rows,
                          std::vector<PoolSegment>& queries, std::vector<PoolSegment>& keys) {
  const auto b = narrow<std::int32_t>(sequence);
  Sequence& s = sequences_[sequence];
  if (own > 0) queries.push_back({.first = (2 * b + (own - 1) % 2) * block(), .count = block(), .out = b});
  if (own > s.pooled)
    keys.push_back({.first = narrow<std::int32_t>(b * key_rows + s.pooled * block()),
                    .count = (own - s.pooled) * block(),
                    .out = b * most_ + s.pooled});
  s.pooled = own;
}

void SelectionCache::score(const Tensor& keys, std::vector<PoolSegment> new_queries, std::vector<PoolSegment> new_keys,
                           const ExecContext& ctx) const {
  const auto rows = [](const Tensor& t) { return t.view({t.dim(0) * t.dim(1), t.dim(2), t.dim(3)}); };
  block_pool_kernel({rows(queries_), query_means_, std::move(new_queries), block()}, ctx);
  block_pool_kernel({rows(keys), key_means_, std::move(new_keys), block()}, ctx);
}

void SelectionCache::select(const Pattern& pattern, const Tensor& keys, float scale,
                            const std::vector<std::int32_t>& tokens, const Scored& scored, const ExecContext& ctx) {
  std::vector<SelectedRows> documents;
  std::vector<PoolSegment> new_queries, new_keys;
  for (std::size_t sequence = 0; sequence < sequences_.size(); ++sequence) {
    const std::int32_t own = tokens[sequence] / block(), b = narrow<std::int32_t>(sequence);
    if (sequences_[sequence].selected == own) continue;
    sequences_[sequence].selected = own;
    pool(sequence, own, keys.dim(1), new_queries, new_keys);
    documents.push_back({.queries = b - (own - 1), .keys = b * most_, .kept = b - own, .begin = own, .end = own + 1});
  }
  if (documents.empty()) return;
  if (scored) {
    const Tensor scores = scored(documents);
    block_select_kernel({{}, {}, selected_, std::move(documents), pattern.blocks, scores}, ctx);
  } else {
    score(keys, std::move(new_queries), std::move(new_keys), ctx);
    block_select_kernel({.queries = query_means_,
                         .keys = key_means_,
                         .kept = selected_,
                         .documents = std::move(documents),
                         .blocks = pattern.blocks,
                         .scale = scale_of_means(scale, queries_.dim(2), keys.dim(2))},
                        ctx);
  }
  kept_ = to_host<std::int32_t>(selected_, ctx.stream);
}

bool SelectionCache::is_selected(std::size_t sequence, std::int32_t head, std::int32_t k) const {
  SelectedBlocks lists;
  lists.kept = reinterpret_cast<const std::uint32_t*>(kept_.data());
  lists.heads = static_cast<std::int32_t>(selected_.dim(1)), lists.room = static_cast<std::int32_t>(selected_.dim(2));
  return lists.keeps(static_cast<std::int32_t>(sequence), head, k);
}

}  // namespace ring
