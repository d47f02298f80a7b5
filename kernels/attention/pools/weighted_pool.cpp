#include "kernels/attention/pools/weighted_pool.h"

namespace ring {
namespace {

void check_heads(const char* op, const char* name, const Tensor& t, const Tensor& k, DType type) {
  RING_CHECK(t.defined() && t.dtype() == type && t.shape().size() == 3 && t.shape() == k.shape() &&
                 (t.dim(2) <= 1 || t.stride(2) == 1),
             op, ": ", name, " is ", describe(t), ", expected ", type, " as k, ", describe(k),
             ", with unit last stride");
}

void check_dense(const char* op, const char* name, const Tensor& t, const Shape& shape, DType type) {
  RING_CHECK(t.defined() && t.is_contiguous() && t.dtype() == type && t.shape() == shape, op, ": ", name, " is ",
             describe(t), ", expected contiguous ", type, shape);
}

void check_rows(const char* op, const Tensor& k, const Tensor& weights, const std::vector<PoolSegment>& rows) {
  const std::int64_t size = weights.dim(2);
  RING_CHECK(size > 0, op, ": pools of no rows");
  for (const PoolSegment& r : rows)
    RING_CHECK(r.first >= 0 && r.count >= 0 && r.leading_gap == 0 && r.count % size == 0 && r.out >= 0 &&
                   r.first + std::int64_t{r.count} <= k.dim(0) && r.out + r.count / size <= weights.dim(0),
               op, ": rows ", r.first, " to ", r.first + std::int64_t{r.count}, " are not whole pools of ", size,
               " that match ", describe(k), " and ", describe(weights), " from row ", r.out, " on");
}

void check_weights(const char* op, const Tensor& k, const Tensor& weights) {
  RING_CHECK(weights.defined() && weights.dtype() == DType::f32 && weights.is_contiguous() &&
                 weights.shape().size() == 3 && k.defined() && k.shape().size() == 3 && weights.dim(1) == k.dim(1),
             op, ": weights are ", describe(weights), " for k ", describe(k), ", expected f32[pools, heads, rows]");
}

}  // namespace

void check(const WeightedPool& a) {
  constexpr const char* op = "weighted_pool";
  check_weights(op, a.k, a.weights);
  const DType type = a.k.dtype();
  const std::int64_t pools = a.weights.dim(0), heads = a.k.dim(1), dim = a.k.dim(2), size = a.weights.dim(2);
  check_heads(op, "k", a.k, a.k, type);
  check_heads(op, "v", a.v, a.k, type);
  check_heads(op, "x", a.x, a.k, type);
  check_dense(op, "positions", a.positions, {heads, size}, type);
  check_dense(op, "query", a.query, {heads, dim}, type);
  check_dense(op, "keys", a.keys, {pools, heads, dim}, type);
  check_dense(op, "values", a.values, {pools, heads, dim}, type);
  check_rows(op, a.k, a.weights, a.rows);
}

void check(const WeightedPoolBackward& a) {
  constexpr const char* op = "weighted_pool_backward";
  check_weights(op, a.k, a.weights);
  const DType type = a.k.dtype();
  const Shape pooled{a.weights.dim(0), a.k.dim(1), a.k.dim(2)};
  check_heads(op, "k", a.k, a.k, type);
  check_heads(op, "v", a.v, a.k, type);
  check_heads(op, "dk", a.dk, a.k, DType::f32);
  check_heads(op, "dv", a.dv, a.k, DType::f32);
  check_dense(op, "query", a.query, {a.k.dim(1), a.k.dim(2)}, type);
  check_dense(op, "dkeys", a.dkeys, pooled, DType::f32);
  check_dense(op, "dvalues", a.dvalues, pooled, DType::f32);
  check_dense(op, "dquery", a.dquery, pooled, DType::f32);
  check_dense(op, "dpositions", a.dpositions, a.weights.shape(), DType::f32);
  check_rows(op, a.k, a.weights, a.rows);
}

}  // namespace ring
