#include "kernels/attention/sampled_rows.h"

#include "kernels/rows.h"

namespace ring {
namespace {

// Throws Error unless a tensor with `all` rows contains every row that is sampled for its `heads` heads.
void check_samples(std::string_view op, const SampledRows& r, std::int64_t heads, std::int64_t all) {
  RING_CHECK(r.count >= 0 && r.rate >= 1 && r.shift >= 0 && r.kv_heads >= 1, op, ": ", r.count, " samples of rate ",
             r.rate, ", shift ", r.shift, " and ", r.kv_heads, " KV heads");
  RING_CHECK(heads % r.kv_heads == 0, op, ": ", heads, " heads, expected a multiple of ", r.kv_heads, " KV heads");
  for (std::int64_t k = 0; r.count > 0 && k < r.kv_heads; ++k)
    RING_CHECK(r.row(k, r.count - 1) < all, op, ": the last of ", r.count, " samples of KV head ", k, " is row ",
               r.row(k, r.count - 1), " of ", all);
}

void check_sampled_heads(std::string_view op, std::string_view name, const Tensor& all, std::string_view samples_name,
                         const Tensor& samples, const SampledRows& rows) {
  RING_CHECK(all.defined() && all.shape().size() == 3, op, ": ", name, " is ", describe(all),
             ", expected [rows, heads, dim]");
  check_samples(op, rows, all.dim(1), all.dim(0));
  check_shape(op, samples_name, samples, {rows.count, all.dim(1), all.dim(2)});
  for (const auto& [which, t] : {std::pair{name, &all}, {samples_name, &samples}})
    RING_CHECK(t->dim(2) <= 1 || t->stride(2) == 1, op, ": the last dim of ", which, " ", describe(*t), " has stride ",
               t->stride(2));
}

void check_f32(std::string_view op, std::string_view name, const Tensor& t) {
  RING_CHECK(t.dtype() == DType::f32, op, ": ", name, " is ", describe(t), ", expected f32");
}

void check_lse(std::string_view op, std::string_view name, const Tensor& t, const Shape& shape) {
  check_shape(op, name, t, shape);
  RING_CHECK(t.is_contiguous() && t.dtype() == DType::f32, op, ": ", name, " is ", describe(t),
             ", expected contiguous f32");
}

}  // namespace

void check(const GatherSamples& a) {
  check_sampled_heads("gather_samples", "src", a.src, "dst", a.dst, a.rows);
  RING_CHECK(a.src.dtype() == a.dst.dtype() && (a.src.dtype() == DType::f32 || a.src.dtype() == DType::bf16),
             "gather_samples: src is ", describe(a.src), ", dst ", describe(a.dst), ", expected one type, f32 or bf16");
}

void check(const AddSamples& a) {
  check_sampled_heads("add_samples", "dst", a.dst, "src", a.src, a.rows);
  check_f32("add_samples", "dst", a.dst);
  check_f32("add_samples", "src", a.src);
}

void check(const GatherSampleLse& a) {
  constexpr std::string_view op = "gather_sample_lse";
  RING_CHECK(a.src.defined() && a.src.shape().size() == 2, op, ": src is ", describe(a.src),
             ", expected [heads, rows]");
  check_samples(op, a.rows, a.src.dim(0), a.src.dim(1));
  check_lse(op, "src", a.src, a.src.shape());
  check_lse(op, "dst", a.dst, {a.src.dim(0), a.rows.count});
}

void check(const MergeSamples& a) {
  constexpr std::string_view op = "merge_samples";
  check_sampled_heads(op, "out", a.out, "part", a.part, a.rows);
  check_f32(op, "out", a.out);
  check_f32(op, "part", a.part);
  check_lse(op, "lse", a.lse, {a.out.dim(1), a.out.dim(0)});
  check_lse(op, "part_lse", a.part_lse, {a.out.dim(1), a.rows.count});
}

}  // namespace ring
