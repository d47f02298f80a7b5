#include "kernels/attention/importance/distance_mass.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/checked.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/selected/block_mass.h"
#include "kernels/row_copy.h"
#include "kernels/rows.h"

namespace ring {
namespace {

// Returns the pattern with a content rule for all heads instead of its own rules, so that calls take the kept blocks
// from a selection (selection.h).
Pattern selecting(Pattern p) {
  const BlockRule any{.kind = BlockRuleKind::content, .local = 1, .keep = 1};
  p.blocks = std::make_shared<const BlockPattern>(p.blocks->block(), std::vector{any});
  return p;
}

// Returns the first selection row of each document. A call over parts of these documents needs it
// (BlockSelection::rows).
std::vector<std::int32_t> rows_of(const Pattern& pattern, const std::vector<Span>& documents) {
  std::vector<std::int32_t> rows = first_blocks(pattern, documents);
  rows.pop_back();
  return rows;
}

// Rows [first, second) of a selection.
using Rows = std::pair<std::int32_t, std::int32_t>;

// Returns the selection rows of the query blocks whose first token is among the queries. rows: the first selection row
// of each document.
std::vector<Rows> begun_blocks(const Attention& a, const std::vector<std::int32_t>& rows) {
  std::vector<Rows> begun;
  for (std::size_t b = 0; b < a.keys.size(); ++b) {
    const std::int64_t size = a.pattern.blocks->block(), origin = a.pattern.origin(a.keys[b].document);
    // Returns the index of the first block that begins at `position` or later. A document may begin within its first
    // block, which then counts as beginning with the document.
    const auto first_from = [&](std::int64_t position) {
      return position == a.keys[b].position ? 0 : narrow<std::int32_t>((position - origin + size - 1) / size);
    };
    const Span& q = a.queries[b];
    if (q.count > 0)
      begun.push_back({rows[b] + first_from(q.position), rows[b] + first_from(q.position + std::int64_t{q.count})});
  }
  return begun;
}

// Returns a copy of the selection in which all rows except `rows` are empty.
BlockSelection of_rows(const BlockSelection& all, const std::vector<Rows>& rows, const ExecContext& ctx) {
  const std::vector<std::int32_t> none(static_cast<std::size_t>(all.kept.numel()), kNoBlock);
  const BlockSelection some{from_host(none, ctx.stream).view(all.kept.shape())};
  for (const auto& [first, end] : rows)
    if (end > first) copy_rows_kernel({some.kept, all.kept, {.to = first, .first = first, .count = end - first}}, ctx);
  return some;
}

}  // namespace

void check(const DistanceMass& a) {
  constexpr const char* op = "distance_mass";
  RING_CHECK(a.selection.kept.defined() && a.selection.kept.shape().size() == 3, op, ": the selection is ",
             describe(a.selection.kept));
  const std::int64_t kv_heads = a.selection.kept.dim(1), max = max_blocks(a.pattern, a.spans);
  for (const BlockSelection* s : {&a.selection, &a.massed}) check(*s, a.pattern, a.spans, a.spans, kv_heads, op);
  RING_CHECK(a.mass.defined() && a.mass.shape() == a.massed.kept.shape(), op, ": mass is ", describe(a.mass),
             " for a selection ", describe(a.massed.kept));
  RING_CHECK(a.out.defined() && a.out.shape().size() == 3 && a.out.dim(0) == 2 && a.out.dim(1) == kv_heads &&
                 a.out.dim(2) >= max,
             op, ": out is ", describe(a.out), " for ", kv_heads, " KV heads and documents of ", max, " blocks");
  for (const Tensor* t : {&a.mass, &a.out})
    RING_CHECK(t->dtype() == DType::f32 && t->is_contiguous(), op, ": ", describe(*t), " is not f32 and contiguous");
}

BlockSelection selection_of_rules(const Pattern& pattern, const std::vector<Span>& spans, std::int64_t kv_heads,
                                  const std::vector<std::int32_t>& first, const ExecContext& ctx) {
  std::vector<std::vector<std::int32_t>> lists;
  std::size_t room = 1;
  for (const Span& s : spans)
    for (std::int32_t i = 0, blocks = blocks_of(pattern, s); i < blocks; ++i)
      for (std::int32_t head = 0; head < kv_heads; ++head) {
        std::vector<std::int32_t>& list = lists.emplace_back();
        for (std::int32_t k = first.empty() ? 0 : first[static_cast<std::size_t>(head)]; k <= i; ++k)
          if (pattern.blocks->keeps(head, i, k)) list.push_back(k);
        room = std::max(room, list.size());
      }
  std::vector<std::int32_t> kept;
  for (std::vector<std::int32_t>& list : lists) {
    list.resize(room, kNoBlock);
    kept.insert(kept.end(), list.begin(), list.end());
  }
  return {from_host(kept, ctx.stream).view({std::ssize(lists) / kv_heads, kv_heads, narrow<std::int64_t>(room)})};
}

Tensor distance_masses(const Attention& call, std::int64_t distances, const std::vector<std::int32_t>& first,
                       const ExecContext& ctx) {
  Attention a = call;
  a.v = a.k;
  a.out = ctx.empty(a.q.shape());
  a.lse = ctx.empty({a.q.dim(1), a.q.dim(0)});
  attention_kernel(a, ctx);
  const std::int64_t kv_heads = a.k.dim(1);
  const Pattern selected = selecting(a.pattern);
  const bool parts = a.queries != a.keys || a.q.dim(0) != a.k.dim(0);
  BlockSelection kept = selection_of_rules(a.pattern, a.keys, kv_heads, {}, ctx);
  if (parts) kept.rows = rows_of(a.pattern, a.keys);
  const Tensor mass = parts ? ctx.zeros(kept.kept.shape()) : ctx.empty(kept.kept.shape()),
               out = ctx.empty({2, kv_heads, distances});
  block_mass_kernel({a.q, a.k, a.lse, mass, a.keys, a.scale, selected, kept, parts ? a.queries : std::vector<Span>{}},
                    ctx);
  const BlockSelection counted = selection_of_rules(a.pattern, a.keys, kv_heads, first, ctx);
  const BlockSelection massed{kept.kept};
  distance_mass_kernel({mass, out, counted, massed, a.keys, selected}, ctx);
  if (!parts) return out;
  const Tensor begun = ctx.empty(out.shape());
  distance_mass_kernel({mass, begun, of_rows(counted, begun_blocks(a, kept.rows), ctx), massed, a.keys, selected}, ctx);
  copy_rows_kernel({out, begun, {.to = 1, .first = 1, .count = 1}}, ctx);
  return out;
}

}  // namespace ring
