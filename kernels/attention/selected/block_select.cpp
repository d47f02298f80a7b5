#include "kernels/attention/selected/block_select.h"

#include <algorithm>

#include "core/checked.h"
#include "kernels/attention/pools/block_pool.h"
#include "kernels/rows.h"

namespace ring {

Cost cost(const BlockSelect& a) {
  double pairs = 0;
  for (const SelectedRows& d : a.documents)
    pairs += 0.5 * (static_cast<double>(d.begin) + d.end - 1) * (static_cast<double>(d.end) - d.begin);
  if (a.scores.defined()) return cost_of(a.scores, {a.scores, a.kept, a.kept_scores});
  return cost_of(a.keys, {a.queries, a.keys, a.kept}, 2 * pairs * static_cast<double>(a.keys.dim(1) * a.keys.dim(2)));
}

namespace {

constexpr const char* op = "block_select";

void check_kept(const BlockSelect& a, const Tensor& beside) {
  RING_CHECK(a.kept.defined() && a.kept.dtype() == DType::i32 && a.kept.is_contiguous() && a.kept.shape().size() == 3 &&
                 a.kept.dim(1) == beside.dim(1),
             op, ": kept blocks are ", describe(a.kept), " for ", describe(beside));
  RING_CHECK(!a.kept_scores.defined() || (a.scores.defined() && a.kept_scores.dtype() == DType::f32 &&
                                          a.kept_scores.is_contiguous() && a.kept_scores.shape() == a.kept.shape()),
             op, ": kept scores are ", describe(a.kept_scores), " for kept blocks ", describe(a.kept), " and scores ",
             describe(a.scores));
  std::int32_t max = 0;
  for (const SelectedRows& d : a.documents) max = std::max(max, d.end);
  const std::int64_t room = max_kept_blocks(*a.blocks, a.kept.dim(1), max);
  RING_CHECK(max == 0 || a.kept.dim(2) >= room, op, ": kept blocks are ", describe(a.kept), ", but rows keep up to ",
             room, " of ", max, " blocks");
}

void check_scores(const BlockSelect& a) {
  RING_CHECK(!a.queries.defined() && !a.keys.defined(), op, ": scores are given together with queries or keys");
  RING_CHECK(a.scores.dtype() == DType::f32 && a.scores.is_contiguous() && a.scores.shape().size() == 3, op,
             ": scores are ", describe(a.scores), ", expected f32[blocks, KV heads, blocks]");
  check_kept(a, a.scores);
  for (const SelectedRows& d : a.documents)
    RING_CHECK(d.begin >= 0 && d.begin <= d.end && d.end <= a.scores.dim(2) &&
                   has_rows(a.kept, std::int64_t{d.kept} + d.begin, std::int64_t{d.kept} + d.end) &&
                   has_rows(a.scores, std::int64_t{d.kept} + d.begin, std::int64_t{d.kept} + d.end),
               op, ": blocks ", d.begin, " to ", d.end, " from row ", d.kept, " on do not fit scores ",
               describe(a.scores), " and kept blocks ", describe(a.kept));
}

}  // namespace

void check(const BlockSelect& a) {
  RING_CHECK(a.blocks, op, ": no block pattern");
  RING_CHECK(a.scale > 0, op, ": scores times ", a.scale, ", expected a scale above 0");
  if (a.scores.defined()) return check_scores(a);
  for (const Tensor* t : {&a.queries, &a.keys})
    RING_CHECK(t->defined() && t->dtype() == DType::f32 && t->is_contiguous() && t->shape().size() == 3 &&
                   t->dim(1) == a.keys.dim(1) && t->dim(2) == a.keys.dim(2),
               op, ": ", describe(*t), " with keys ", describe(a.keys), ", expected f32[blocks, KV heads, head dim]");
  check_kept(a, a.keys);
  for (const SelectedRows& d : a.documents)
    RING_CHECK(d.begin >= 0 && d.begin <= d.end &&
                   has_rows(a.kept, std::int64_t{d.kept} + d.begin, std::int64_t{d.kept} + d.end) &&
                   has_rows(a.keys, d.keys, std::int64_t{d.keys} + d.end - 1) &&
                   has_rows(a.queries, std::int64_t{d.queries} + std::max(0, d.begin - 1),
                            std::int64_t{d.queries} + d.end - 1),
               op, ": blocks ", d.begin, " to ", d.end, " with rows ", d.queries, ", ", d.keys, " and ", d.kept,
               " do not fit queries ", describe(a.queries), ", keys ", describe(a.keys), " and kept blocks ",
               describe(a.kept));
}

BlockSelection select_blocks(const Pattern& pattern, const Tensor& q, const Tensor& k, float scale,
                             const std::vector<Span>& spans, const ExecContext& ctx, std::int64_t room) {
  if (!pattern.selects()) return {};
  const std::vector<std::int32_t> first = first_blocks(pattern, spans);
  const std::int32_t rows = first.back(), block = pattern.blocks->block();
  std::vector<SelectedRows> documents;
  for (std::size_t b = 0; b < spans.size(); ++b)
    documents.push_back(
        {.queries = first[b], .keys = first[b], .kept = first[b], .begin = 0, .end = first[b + 1] - first[b]});
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
  room = std::max(room, max_kept_blocks(pattern, kv_heads, spans));
  BlockSelection made{ctx.empty({rows, kv_heads, room}, DType::i32)};
  block_select_kernel({.queries = queries,
                       .keys = keys,
                       .kept = made.kept,
                       .documents = std::move(documents),
                       .blocks = pattern.blocks,
                       .scale = scale_of_means(scale, q.dim(1), kv_heads)},
                      ctx);
  return made;
}

}  // namespace ring
