#pragma once
// Softmax attention in fp64, one row at a time, as defined: a pair of a query and a key counts as often as the pattern
// says.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "core/philox.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/pairs.h"
#include "model/flops.h"
#include "tests/op_case.h"

namespace ring::test {

inline Pattern dense(bool causal = true) { return {.causal = causal}; }
inline Pattern window(std::int32_t window, std::int32_t sinks = 0, bool causal = true) {
  return {.causal = causal, .branches = {{.window = window}}, .sinks = sinks};
}
inline Pattern dilated(const std::vector<Branch>& branches, bool dedup = false, std::int32_t shift = 0,
                       bool causal = true) {
  return {.causal = causal, .branches = branches, .dedup = dedup, .from_row = true, .shift = shift};
}
// Patterns that no kind of attention has: branches with windows, and segments that count from the document's start.
inline Pattern branched(const std::vector<Branch>& branches, std::int32_t sinks = 0, std::int32_t shift = 0,
                        bool causal = true) {
  return {.causal = causal, .branches = branches, .sinks = sinks, .shift = shift};
}
inline Pattern scales(bool causal = true) {
  return branched({{.window = 5}, {.rate = 3, .window = 4}, {.rate = 10, .window = 9}}, 12, 1, causal);
}
inline Pattern chunks(bool causal = true) {
  return branched({{.segment = 40, .window = 6}, {.segment = 90, .rate = 4}, {.segment = 64}}, 20, 2, causal);
}
inline Pattern block_sparse(std::int32_t block, const std::vector<BlockRule>& rules, bool causal = true,
                            const std::vector<std::uint32_t>& bits = {}) {
  std::vector<std::int32_t> of_head;
  for (std::size_t r = 0; r < rules.size(); ++r) of_head.push_back(static_cast<std::int32_t>(r));
  return {.causal = causal, .blocks = std::make_shared<BlockPattern>(block, rules, of_head, bits)};
}

// Returns the pattern with pools of these sizes in addition to its pairs.
inline Pattern pooled(Pattern p, const std::vector<std::int32_t>& pools) {
  p.pools = pools;
  return p;
}

// Returns how often query t and key u of the document that starts at `document` count. Both are positions in the packed
// row; if keys are pools, u is the number of the pool.
inline int multiplicity(const Pattern& p, std::int32_t kv_head, std::int32_t t, std::int32_t u, std::int32_t document) {
  if (p.pool > 0) return (u - document + 1) * p.pool <= t - document;
  if (p.causal && u > t) return 0;
  if (p.blocks) {
    const std::int32_t size = p.blocks->block(), origin = document / size;
    return p.blocks->keeps(kv_head, t / size - origin, u / size - origin);
  }
  const std::int32_t origin = p.from_row ? 0 : document;
  int branches = 0;
  for (const Branch& b : p.branches) {
    const std::int32_t s = (kv_head + p.shift) % b.rate, reach = b.window * b.rate;
    const auto sampled = [&](std::int32_t x) { return (x - origin) % b.segment % b.rate == s; };
    const bool near = b.window == 0 || std::abs(t - u) < reach || u - origin < p.sinks;
    branches += (t - origin) / b.segment == (u - origin) / b.segment && sampled(t) && sampled(u) && near;
  }
  return p.dedup ? std::min(branches, 1) : branches;
}

// Dropout on weights, as defined: query n of the tensor is row first_row + n of the batch, or, with a step, row
// first_row + n step + 1.
struct OracleDropout {
  float rate = 0;
  std::int64_t first_row = 0, first_head = 0;
  std::int32_t step = 0;
  bool in_state = false;  // if the call reads the step from the optimizer's state
  RandomSite site{.seed = 11, .step = 5, .site = 91};

  // Returns the factor of a pair's weight: 0 if the pair's 32 random bits are below rate * 2^32.
  double factor(std::int64_t query, std::int64_t head, std::int32_t key_position) const {
    if (rate == 0) return 1;
    constexpr std::uint64_t k32 = std::uint64_t{1} << 32;
    const std::int64_t row = first_row + (step > 0 ? query * step + 1 : query);
    const std::uint64_t of_query = random_bits(site, static_cast<std::uint64_t>(row * 65536 + first_head + head));
    auto x = static_cast<std::uint64_t>(key_position);
    x = (x ^ x / 65536) * 0x7feb352du % k32;
    x = (x ^ x / 32768) * 0x846ca68bu % k32;
    x = ((x ^ x / 65536) / 2 * 2 + 1) * (of_query / 2 * 2 + 1) % k32;
    return static_cast<double>(x) < static_cast<double>(rate) * static_cast<double>(k32)
               ? 0
               : 1 / (1 - static_cast<double>(rate));
  }
  std::vector<std::int32_t> rows(std::int64_t count) const {
    std::vector<std::int32_t> all;
    for (std::int64_t n = 0; n < count; ++n) all.push_back(static_cast<std::int32_t>(n * step + 1));
    return all;
  }
};

struct AttentionShape {
  std::vector<std::int32_t> offsets;
  std::int64_t heads, kv_heads, dim;
  double scale;
  Pattern pattern;
  std::vector<std::int32_t> rows = {};  // starts of packed rows; empty: each document is a row
  OracleDropout dropout = {};
  Values pooling = {};  // of learned pools, for each size: positions [Hk,p], then queries [Hk,D]; empty: means
  Values gates = {};    // [N,Hq], gates of pools; empty: 0
  double soft_cap = 0;  // 0: no cap
  Values sinks = {};    // [Hq], learned sinks (kernels/attention/sink.h); empty: no sinks
  std::int64_t tokens() const { return offsets.back(); }
};

inline std::vector<std::int32_t> offsets_of(const std::vector<std::int32_t>& lengths, std::int32_t first = 0) {
  std::vector<std::int32_t> offsets = {first};
  for (std::int32_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

struct AttentionResult {
  Values out, lse;  // [N,Hq,D], [Hq,N]
};

inline double dot(const double* a, const double* b, std::int64_t n) { return std::transform_reduce(a, a + n, b, 0.0); }

// Returns the mean of block j of x [N,heads,D], summed over heads [head, head_end). Blocks count from row `origin`; the
// document has rows [first, end).
inline Values block_mean(const AttentionShape& a, const Values& x, std::int64_t heads, std::int64_t head,
                         std::int64_t head_end, std::int64_t origin, std::int64_t first, std::int64_t end, int j) {
  const std::int64_t size = a.pattern.blocks->block(), from = std::max(first, origin + j * size);
  const std::int64_t to = std::min(end, origin + (j + 1) * size);
  Values mean(static_cast<std::size_t>(a.dim));
  for (std::int64_t n = from; n < to; ++n)
    for (std::int64_t h = head; h < head_end; ++h)
      for (std::int64_t i = 0; i < a.dim; ++i)
        mean[static_cast<std::size_t>(i)] +=
            x[static_cast<std::size_t>((n * heads + h) * a.dim + i)] / static_cast<double>(to - from);
  return mean;
}

// Returns the score of key block j for query block i under a content rule.
inline double block_score(const AttentionShape& a, const Values& q, const Values& k, std::int64_t kv,
                          std::int64_t origin, std::int64_t first, std::int64_t end, int i, int j) {
  const std::int64_t group = a.heads / a.kv_heads;
  const Values asks = block_mean(a, q, a.heads, kv * group, (kv + 1) * group, origin, first, end, i - 1);
  const Values has = block_mean(a, k, a.kv_heads, kv, kv + 1, origin, first, end, j);
  return dot(asks.data(), has.data(), a.dim);
}

// Returns the number of scores, in order and negated, whose share of the softmax over all scores reaches the mass.
inline int count_reaching(double mass, double scale, const std::vector<std::pair<double, int>>& best_first) {
  const auto weight = [&](std::size_t n) { return std::exp(scale * (best_first[0].first - best_first[n].first)); };
  double all = 0, sum = 0;
  for (std::size_t n = 0; n < best_first.size(); ++n) all += weight(n);
  std::size_t count = 0;
  while (count < best_first.size() && (count == 0 || sum < mass * all)) sum += weight(count++);
  return static_cast<int>(count);
}

// Returns the blocks that query block i keeps: by a positional rule, or by content: the required blocks, then the best
// ones, up to the rule's number or mass. slack: added to a mass below 1.
inline std::vector<bool> kept_blocks(const AttentionShape& a, const Values& q, const Values& k, std::int64_t kv,
                                     std::int64_t origin, std::int64_t first, std::int64_t end, int i,
                                     double slack = 0) {
  const BlockRule& rule = a.pattern.blocks->rule(static_cast<std::int32_t>(kv));
  std::vector<bool> kept(static_cast<std::size_t>(i) + 1);
  std::vector<std::pair<double, int>> others;  // negated scores: the best come first; of equal scores, the first block
  int count = 0;
  for (int j = 0; j <= i; ++j) {
    const bool always = rule.kind == BlockRuleKind::content ? i - j < rule.local || j < rule.first
                                                            : rule.keeps(static_cast<std::int32_t>(kv), i, j);
    kept[static_cast<std::size_t>(j)] = always;
    count += always;
    if (rule.kind == BlockRuleKind::content && !always)
      others.emplace_back(-block_score(a, q, k, kv, origin, first, end, i, j), j);
  }
  std::sort(others.begin(), others.end());
  int most = std::max(0, rule.keep - count);
  const double of_heads = a.scale * static_cast<double>(a.kv_heads) / static_cast<double>(a.heads);  // mean over heads
  if (rule.mass < 1) most = std::min(most, count_reaching(static_cast<double>(rule.mass) + slack, of_heads, others));
  for (const auto& [score, j] : others)
    if (most-- > 0) kept[static_cast<std::size_t>(j)] = true;
  return kept;
}

// Keys and values of a document's pools that end at row `t` or before, as defined.
struct PoolMeans {
  std::vector<Values> keys, values;
  std::vector<std::int64_t> ends;  // the row after each pool: queries see the pool from that row on

  PoolMeans(const AttentionShape& a, const Values& k, const Values& v, std::int64_t kv, std::int64_t first,
            std::int64_t t) {
    const double* learned = a.pooling.empty() ? nullptr : a.pooling.data();
    for (const std::int32_t size : a.pattern.pools) {
      for (std::int64_t n = first; n + size <= t; n += size) {
        const Values w = learned ? weights(a, learned, v, kv, n, size)
                                 : Values(static_cast<std::size_t>(size), 1.0 / static_cast<double>(size));
        keys.push_back(sum(a, k, kv, n, w));
        values.push_back(sum(a, v, kv, n, w));
        ends.push_back(n + size);
      }
      if (learned) learned += a.kv_heads * (size + a.dim);
    }
  }

 private:
  static double at(const AttentionShape& a, const Values& x, std::int64_t n, std::int64_t kv, std::int64_t i) {
    return x[static_cast<std::size_t>((n * a.kv_heads + kv) * a.dim + i)];
  }
  static Values weights(const AttentionShape& a, const double* learned, const Values& v, std::int64_t kv,
                        std::int64_t first, std::int32_t size) {
    const double *positions = learned + kv * size, *query = learned + a.kv_heads * size + kv * a.dim;
    Values w;
    for (std::int32_t r = 0; r < size; ++r) {
      w.push_back(positions[r]);
      for (std::int64_t i = 0; i < a.dim; ++i) w.back() += query[i] * at(a, v, first + r, kv, i);
    }
    const double largest = *std::max_element(w.begin(), w.end());
    double total = 0;
    for (double& x : w) total += x = std::exp(x - largest);
    for (double& x : w) x /= total;
    return w;
  }
  static Values sum(const AttentionShape& a, const Values& x, std::int64_t kv, std::int64_t first, const Values& w) {
    Values sum(static_cast<std::size_t>(a.dim));
    for (std::size_t r = 0; r < w.size(); ++r)
      for (std::int64_t i = 0; i < a.dim; ++i)
        sum[static_cast<std::size_t>(i)] += w[r] * at(a, x, first + static_cast<std::int64_t>(r), kv, i);
    return sum;
  }
};

// A document with rows [first, end), in a packed row that starts at `row`.
struct OracleDocument {
  std::int64_t first, end, row;
  std::vector<bool> kept = {};  // blocks of keys that the query's block keeps, if the pattern selects
  const PoolMeans* pools = nullptr;

  std::int64_t origin(std::int64_t block) const { return row + (first - row) / block * block; }
};

// Adds query `t` of head `h` over the keys of its document to out; returns the log-sum-exp.
inline double attend(const AttentionShape& a, const Values& q, const Values& k, const Values& v, std::int64_t h,
                     std::int64_t t, const OracleDocument& d, double* out) {
  const std::int64_t kv = h * a.kv_heads / a.heads;
  const auto at = [&](const Values& x, std::int64_t n, std::int64_t heads, std::int64_t head) {
    return x.data() + (n * heads + head) * a.dim;
  };
  const auto position = [&](std::int64_t n) { return static_cast<std::int32_t>(n - d.row); };
  struct Key {
    const double* value;
    double factor;  // dropout factor
  };
  std::vector<Key> keys;
  Values s;
  const double none = -std::numeric_limits<double>::infinity();
  const double sink = a.sinks.empty() ? none : a.sinks[static_cast<std::size_t>(h)];
  double largest = sink, total = 0;
  const auto add = [&](const double* key, double bias, const Key& of) {
    keys.push_back(of);
    const double score = dot(at(q, t, a.heads, h), key, a.dim) * a.scale;
    s.push_back((a.soft_cap > 0 ? a.soft_cap * std::tanh(score / a.soft_cap) : score) + bias);
    largest = std::max(largest, s.back());
  };
  const std::int64_t size = a.pattern.selects() ? a.pattern.blocks->block() : 1, origin = d.origin(size);
  for (std::int64_t u = d.first; u < d.end; ++u) {
    const int m = a.pattern.selects() ? u <= t && d.kept[static_cast<std::size_t>((u - origin) / size)]
                                      : multiplicity(a.pattern, static_cast<std::int32_t>(kv), position(t), position(u),
                                                     position(d.first));
    if (m == 0) continue;
    add(at(k, u, a.kv_heads, kv), std::log(m), {at(v, u, a.kv_heads, kv), a.dropout.factor(t, h, position(u))});
  }
  const double gate = a.gates.empty() ? 0 : a.gates[static_cast<std::size_t>(t * a.heads + h)];
  for (std::size_t j = 0; j < d.pools->keys.size(); ++j)
    if (d.pools->ends[j] <= t) add(d.pools->keys[j].data(), gate, {d.pools->values[j].data(), 1});
  for (double& x : s) total += x = std::exp(x - largest);
  if (sink > none) total += std::exp(sink - largest);
  for (std::size_t j = 0; j < keys.size(); ++j) {
    const double weight = s[j] / total * keys[j].factor;
    for (std::int64_t i = 0; i < a.dim; ++i) out[i] += weight * keys[j].value[i];
  }
  return largest + std::log(total);
}

// Returns the start of the packed row that contains row `n`.
inline std::int32_t row_start(const AttentionShape& a, std::int32_t n) {
  std::int32_t start = n;
  for (std::int32_t r : a.rows)
    if (r <= n) start = r;
  return start;
}

inline AttentionResult attention_oracle(const AttentionShape& a, const Values& q, const Values& k, const Values& v) {
  AttentionResult r{Values(q.size()), Values(static_cast<std::size_t>(a.heads * a.tokens()))};
  const std::int64_t group = a.heads / a.kv_heads, size = a.pattern.selects() ? a.pattern.blocks->block() : 1;
  for (std::size_t b = 0; b + 1 < a.offsets.size(); ++b)
    for (std::int64_t kv = 0; kv < a.kv_heads; ++kv) {
      OracleDocument d{a.offsets[b], a.offsets[b + 1], row_start(a, a.offsets[b])};
      const PoolMeans pools(a, k, v, kv, d.first, d.end);
      d.pools = &pools;
      for (std::int64_t t = d.first; t < d.end; ++t) {
        const std::int64_t in_block = (t - d.origin(size)) % size;
        if (a.pattern.selects() && (t == d.first || in_block == 0))
          d.kept =
              kept_blocks(a, q, k, kv, d.origin(size), d.first, d.end, static_cast<int>((t - d.origin(size)) / size));
        for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h)
          r.lse[static_cast<std::size_t>(h * a.tokens() + t)] =
              attend(a, q, k, v, h, t, d, r.out.data() + (t * a.heads + h) * a.dim);
      }
    }
  return r;
}

// Returns the number of pairs of query and key that count, averaged over heads.
inline double attention_pairs(const AttentionShape& a) {
  const std::vector<Span> spans = spans_of(a.offsets, a.rows);
  return kept_pairs(a.pattern, spans, spans, a.kv_heads);
}

}  // namespace ring::test
