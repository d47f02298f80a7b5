#include "kernels/attention/distance_mass.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/attention/block_mass.h"
#include "kernels/attention/blocks.h"
#include "kernels/rows.h"

namespace ring {
namespace {

std::int32_t most_blocks(const Pattern& pattern, const std::vector<Span>& spans) {
  std::int32_t most = 0;
  for (const Span& s : spans) most = std::max(most, blocks_of(pattern, s));
  return most;
}

// The pattern as one whose blocks a selection names.
Pattern selecting(Pattern p) {
  const BlockRule any{.kind = BlockRuleKind::content, .local = 1, .keep = 1};
  p.blocks = std::make_shared<const BlockPattern>(p.blocks->block(), std::vector{any});
  return p;
}

}  // namespace

void check(const DistanceMass& a) {
  constexpr const char* op = "distance_mass";
  RING_CHECK(a.selection.bits.defined() && a.selection.bits.shape().size() == 3, op, ": the selection is ",
             describe(a.selection.bits));
  const std::int64_t kv_heads = a.selection.bits.dim(1), most = most_blocks(a.pattern, a.spans);
  check(a.selection, a.pattern, a.spans, a.spans, kv_heads, op);
  RING_CHECK(a.mass.defined() && a.mass.shape().size() == 3 && a.mass.dim(0) == a.selection.bits.dim(0) &&
                 a.mass.dim(1) == kv_heads && a.mass.dim(2) >= most,
             op, ": mass is ", describe(a.mass), " for a selection ", describe(a.selection.bits));
  RING_CHECK(a.out.defined() && a.out.shape().size() == 3 && a.out.dim(0) == 2 && a.out.dim(1) == kv_heads &&
                 a.out.dim(2) >= most,
             op, ": out is ", describe(a.out), " for ", kv_heads, " KV heads and documents of ", most, " blocks");
  for (const Tensor* t : {&a.mass, &a.out})
    RING_CHECK(t->dtype() == DType::f32 && t->contiguous(), op, ": ", describe(*t), " is not f32 and contiguous");
}

BlockSelection selection_of_rules(const Pattern& pattern, const std::vector<Span>& spans, std::int64_t kv_heads,
                                  const std::vector<std::int32_t>& first, const ExecContext& ctx) {
  const std::int64_t words = (most_blocks(pattern, spans) + 31) / 32;
  std::vector<std::int32_t> bits;
  for (const Span& s : spans)
    for (std::int32_t i = 0, blocks = blocks_of(pattern, s); i < blocks; ++i)
      for (std::int32_t head = 0; head < kv_heads; ++head) {
        std::vector<std::uint32_t> row(static_cast<std::size_t>(words));
        for (std::int32_t k = first.empty() ? 0 : first[static_cast<std::size_t>(head)]; k <= i; ++k)
          if (pattern.blocks->keeps(head, i, k)) row[static_cast<std::size_t>(k / 32)] |= 1u << (k % 32);
        bits.insert(bits.end(), row.begin(), row.end());
      }
  const std::int64_t rows = words > 0 ? std::ssize(bits) / (words * kv_heads) : 0;
  return {from_host(bits, ctx.stream).view({rows, kv_heads, words})};
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
  const BlockSelection kept = selection_of_rules(a.pattern, a.queries, kv_heads, {}, ctx);
  const Tensor mass = ctx.empty({kept.bits.dim(0), kv_heads, most_blocks(a.pattern, a.queries)});
  block_mass_kernel({a.q, a.k, a.lse, mass, a.queries, a.scale, selected, kept}, ctx);
  const Tensor out = ctx.empty({2, kv_heads, distances});
  distance_mass_kernel({mass, out, selection_of_rules(a.pattern, a.queries, kv_heads, first, ctx), a.queries, selected},
                       ctx);
  return out;
}

}  // namespace ring
