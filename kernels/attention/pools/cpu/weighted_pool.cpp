// Pools with learned token weights. Each task computes one pool and head.

#include "kernels/attention/pools/weighted_pool.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention/cpu/common.h"
#include "kernels/cpu/vec.h"

namespace ring::cpu {
namespace {

// Calls fn(pool, head, first row of the pool) for all pools and heads.
template <class Fn>
void for_pools(const std::vector<PoolSegment>& rows, std::int64_t size, std::int64_t heads, const ExecContext& ctx,
               const Fn& fn) {
  for (const PoolSegment& r : rows)
    ctx.stream.pool().parallel_for(r.count / size * heads, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) fn(r.out + i / heads, i % heads, r.first + i / heads * size);
    });
}

void add(float factor, const float* x, std::int64_t dim, float* out) {
  for (std::int64_t i = 0; i < dim; ++i) out[i] += factor * x[i];
}

// Writes the exponentials of the shifted scores to w, and returns 1 / their sum.
float exponentials(const Heads& x, std::int64_t head, std::int64_t first, std::int64_t size, const float* positions,
                   const float* query, float* w) {
  for (std::int64_t r = 0; r < size; ++r) w[r] = positions[r] + dot(query, x.at(first + r, head), x.dim);
  const float largest = *std::max_element(w, w + size);
  float total = 0;
  for (std::int64_t r = 0; r < size; ++r) total += w[r] = std::exp(w[r] - largest);
  return 1 / total;
}

// Writes share * (sum of w[r] * row r). Multiplies by `share` last, so that equal weights are bit-identical to a mean.
void sum_rows(const Heads& x, std::int64_t head, std::int64_t first, const float* w, std::int64_t size, float share,
              float* out) {
  std::fill_n(out, x.dim, 0.0f);
  for (std::int64_t r = 0; r < size; ++r) add(w[r], x.at(first + r, head), x.dim, out);
  for (std::int64_t i = 0; i < x.dim; ++i) out[i] *= share;
}

void run(const WeightedPool& a, const ExecContext& ctx) {
  check(a);
  const Heads k = heads_of(a.k), v = heads_of(a.v), x = heads_of(a.x), keys = heads_of(a.keys),
              values = heads_of(a.values), weights = heads_of(a.weights);
  const float *positions = a.positions.data<float>(), *query = a.query.data<float>();
  for_pools(a.rows, weights.dim, k.heads, ctx, [&](std::int64_t pool, std::int64_t head, std::int64_t first) {
    float* w = weights.at(pool, head);
    const float share =
        exponentials(x, head, first, weights.dim, positions + head * weights.dim, query + head * k.dim, w);
    sum_rows(k, head, first, w, weights.dim, share, keys.at(pool, head));
    sum_rows(v, head, first, w, weights.dim, share, values.at(pool, head));
    for (std::int64_t r = 0; r < weights.dim; ++r) w[r] *= share;
  });
}

void run_backward(const WeightedPoolBackward& a, const ExecContext& ctx) {
  check(a);
  const Heads k = heads_of(a.k), v = heads_of(a.v), weights = heads_of(a.weights), dkeys = heads_of(a.dkeys),
              dvalues = heads_of(a.dvalues), dk = heads_of(a.dk), dv = heads_of(a.dv), scores = heads_of(a.dpositions),
              dquery = heads_of(a.dquery);
  for_pools(a.rows, weights.dim, k.heads, ctx, [&](std::int64_t pool, std::int64_t head, std::int64_t first) {
    const float *w = weights.at(pool, head), *to_key = dkeys.at(pool, head), *to_value = dvalues.at(pool, head),
                *query = a.query.data<float>() + head * k.dim;
    float *ds = scores.at(pool, head), *out = dquery.at(pool, head), mean = 0;
    for (std::int64_t r = 0; r < weights.dim; ++r) {
      ds[r] = dot(k.at(first + r, head), to_key, k.dim) + dot(v.at(first + r, head), to_value, k.dim);
      mean += w[r] * ds[r];
    }
    std::fill_n(out, k.dim, 0.0f);
    for (std::int64_t r = 0; r < weights.dim; ++r) {
      ds[r] = w[r] * (ds[r] - mean);
      add(w[r], to_key, k.dim, dk.at(first + r, head));
      add(w[r], to_value, k.dim, dv.at(first + r, head));
      add(ds[r], query, k.dim, dv.at(first + r, head));
      add(ds[r], v.at(first + r, head), k.dim, out);
    }
  });
}

const bool added[] = {weighted_pool_kernel.add(Backend::cpu, {"pools", run}),
                      weighted_pool_backward_kernel.add(Backend::cpu, {"pools", run_backward})};

}  // namespace
}  // namespace ring::cpu
