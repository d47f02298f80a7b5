#include "kernels/attention/selected/block_mass.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/pairs.h"
#include "kernels/rows.h"

namespace ring {

Cost cost(const BlockMass& a) {
  const double pairs = kept_pairs(a.pattern, a.query_spans(), a.spans, a.k.dim(1));
  return cost_of(a.q, {a.q, a.k, a.lse, a.mass}, 2 * pairs * static_cast<double>(a.q.dim(1) * a.q.dim(2)));
}

namespace {

void check_parts(const char* op, const BlockMass& a) {
  RING_CHECK(a.query_spans().size() == a.spans.size(), op, ": ", a.query_spans().size(), " parts of ", a.spans.size(),
             " documents");
  RING_CHECK(!a.of_parts() || !a.selection.rows.empty(), op, ": parts of documents, but the selection has no rows");
  RING_CHECK(!a.parts_of_keys || a.of_parts(), op, ": parts of keys, but no queries");
  for (std::size_t b = 0; b < a.spans.size(); ++b) {
    const Span &q = a.query_spans()[b], &k = a.spans[b];
    const std::int64_t q_end = q.position + std::int64_t{q.count}, k_end = k.position + std::int64_t{k.count};
    const bool earlier = k_end <= q.position && (k_end - a.pattern.origin(k.document)) % a.pattern.blocks->block() == 0;
    RING_CHECK(q.document == k.document && q.position >= k.position &&
                   (a.parts_of_keys ? earlier || k_end == q_end : q_end <= k_end),
               op, ": queries from position ", q.position, " to ", q_end, " do not fit keys from ", k.position, " to ",
               k_end);
  }
}

}  // namespace

void check(const BlockMass& a) {
  constexpr const char* op = "block_mass";
  RING_CHECK(a.pattern.blocks && a.pattern.causal, op, ": the pattern has no blocks, or is not causal");
  for (const Tensor* t : {&a.q, &a.k})
    RING_CHECK(t->defined() && t->shape().size() == 3 && t->dtype() == a.q.dtype() &&
                   (a.of_parts() || t->dim(0) == a.q.dim(0)) && t->dim(2) == a.q.dim(2) && t->dim(2) % 8 == 0 &&
                   t->stride(2) == 1,
               op, ": ", describe(*t), " with queries ", describe(a.q),
               ", expected [tokens, heads, head dim] of one type, with a head dim that is a multiple of 8");
  const std::int64_t kv_heads = a.k.dim(1);
  RING_CHECK(kv_heads > 0 && a.q.dim(1) % kv_heads == 0, op, ": ", a.q.dim(1), " query heads over ", kv_heads,
             " KV heads");
  check_shape(op, "lse", a.lse, {a.q.dim(1), a.q.dim(0)});
  for (const auto& [spans, t] : {std::pair{&a.spans, &a.k}, {&a.query_spans(), &a.q}})
    for (const Span& s : *spans)
      RING_CHECK(s.first >= 0 && s.count >= 0 && s.first + std::int64_t{s.count} <= t->dim(0), op, ": rows ", s.first,
                 " to ", s.first + std::int64_t{s.count}, " of ", describe(*t));
  check_parts(op, a);
  check(a.selection, a.pattern, a.query_spans(), a.spans, kv_heads, op);
  RING_CHECK(a.selection.kept.defined() && a.mass.defined() && a.mass.shape() == a.selection.kept.shape(), op,
             ": mass is ", describe(a.mass), " for a selection ", describe(a.selection.kept));
  for (const Tensor* t : {&a.lse, &a.mass})
    RING_CHECK(t->dtype() == DType::f32 && t->is_contiguous(), op, ": ", describe(*t), " is not f32 and contiguous");
}

}  // namespace ring
