#pragma once
// Softmax attention in fp64, one row at a time, straight from its definition.

#include <cmath>
#include <limits>

#include "tests/op_case.h"

namespace ring::test {

struct AttentionShape {
  std::vector<std::int32_t> offsets;
  std::int64_t heads, kv_heads, dim;
  double scale;
  bool causal;
  std::int64_t tokens() const { return offsets.back(); }
};

inline std::vector<std::int32_t> offsets_of(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> offsets = {0};
  for (std::int32_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

// The keys [first, end) that query `t` of the sequence [start, stop) sees.
inline std::int64_t keys_end(const AttentionShape& a, std::int64_t t, std::int64_t stop) {
  return a.causal ? t + 1 : stop;
}

// One query of one head: adds to out [dim], returns the log-sum-exp of its scores.
inline double attend(const AttentionShape& a, const double* q, const double* k, const double* v, std::int64_t first,
                     std::int64_t end, double* out) {
  const std::int64_t row = a.kv_heads * a.dim;
  Values s;
  double largest = -std::numeric_limits<double>::infinity(), total = 0;
  for (std::int64_t u = first; u < end; ++u) {
    double score = 0;
    for (std::int64_t i = 0; i < a.dim; ++i) score += q[i] * k[u * row + i];
    s.push_back(score * a.scale);
    largest = std::max(largest, s.back());
  }
  for (double& x : s) total += x = std::exp(x - largest);
  for (std::int64_t u = first; u < end; ++u)
    for (std::int64_t i = 0; i < a.dim; ++i) out[i] += s[static_cast<std::size_t>(u - first)] / total * v[u * row + i];
  return largest + std::log(total);
}

struct AttentionResult {
  Values out, lse;  // [N,Hq,D], [Hq,N]
};

inline AttentionResult attention_oracle(const AttentionShape& a, const Values& q, const Values& k, const Values& v) {
  AttentionResult r{Values(q.size()), Values(static_cast<std::size_t>(a.heads * a.tokens()))};
  for (std::size_t b = 0; b + 1 < a.offsets.size(); ++b)
    for (std::int64_t t = a.offsets[b]; t < a.offsets[b + 1]; ++t)
      for (std::int64_t h = 0; h < a.heads; ++h) {
        const std::int64_t at = (t * a.heads + h) * a.dim, kv = h * a.kv_heads / a.heads * a.dim;
        r.lse[static_cast<std::size_t>(h * a.tokens() + t)] =
            attend(a, q.data() + at, k.data() + kv, v.data() + kv, a.offsets[b], keys_end(a, t, a.offsets[b + 1]),
                   r.out.data() + at);
      }
  return r;
}

// Pairs of query and key that count, over one head.
inline double attention_pairs(const AttentionShape& a) {
  double pairs = 0;
  for (std::size_t b = 0; b + 1 < a.offsets.size(); ++b) {
    const double n = a.offsets[b + 1] - a.offsets[b];
    pairs += a.causal ? n * (n + 1) / 2 : n * n;
  }
  return pairs;
}

}  // namespace ring::test
