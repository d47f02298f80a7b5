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
  if (a.scores.defined()) return cost_of(a.scores, {a.scores, a.bits});
  return cost_of(a.keys, {a.queries, a.keys, a.bits}, 2 * pairs * static_cast<double>(a.keys.dim(1) * a.keys.dim(2)));
}

namespace {

constexpr const char* op = "block_select";

void check_bits(const BlockSelect& a, const Tensor& beside) {
  RING_CHECK(a.bits.defined() && a.bits.dtype() == DType::i32 && a.bits.is_contiguous() && a.bits.shape().size() == 3 &&
                 a.bits.dim(1) == beside.dim(1),
             op, ": bits are ", describe(a.bits), " for ", describe(beside));
}

void check_scores(const BlockSelect& a) {
  RING_CHECK(!a.queries.defined() && !a.keys.defined(), op, ": scores are given together with queries or keys");
  RING_CHECK(a.scores.dtype() == DType::f32 && a.scores.is_contiguous() && a.scores.shape().size() == 3, op,
             ": scores are ", describe(a.scores), ", expected f32[blocks, KV heads, blocks]");
  check_bits(a, a.scores);
  for (const SelectedRows& d : a.documents)
    RING_CHECK(d.begin >= 0 && d.begin <= d.end && d.end <= a.bits.dim(2) * 32 && d.end <= a.scores.dim(2) &&
                   has_rows(a.bits, std::int64_t{d.bits} + d.begin, std::int64_t{d.bits} + d.end) &&
                   has_rows(a.scores, std::int64_t{d.bits} + d.begin, std::int64_t{d.bits} + d.end),
               op, ": blocks ", d.begin, " to ", d.end, " from row ", d.bits, " on do not fit scores ",
               describe(a.scores), " and bits ", describe(a.bits));
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
  check_bits(a, a.keys);
  for (const SelectedRows& d : a.documents)
    RING_CHECK(d.begin >= 0 && d.begin <= d.end && d.end <= a.bits.dim(2) * 32 &&
                   has_rows(a.bits, std::int64_t{d.bits} + d.begin, std::int64_t{d.bits} + d.end) &&
                   has_rows(a.keys, d.keys, std::int64_t{d.keys} + d.end - 1) &&
                   has_rows(a.queries, std::int64_t{d.queries} + std::max(0, d.begin - 1),
                            std::int64_t{d.queries} + d.end - 1),
               op, ": blocks ", d.begin, " to ", d.end, " with rows ", d.queries, ", ", d.keys, " and ", d.bits,
               " do not fit queries ", describe(a.queries), ", keys ", describe(a.keys), " and bits ",
               describe(a.bits));
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
