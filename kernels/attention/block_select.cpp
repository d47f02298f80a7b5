#include "kernels/attention/block_select.h"

#include <algorithm>

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

}  // namespace ring
