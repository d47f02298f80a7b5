#include "inspect/attention_reading.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "core/cpu/thread_pool.h"
#include "inspect/attention_samples.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/pools/weighted_pool.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

constexpr std::int64_t kRows = 128;  // number of queries per GEMM

// Returns `pattern` with its block selection for one whole document stored as drawn block rules (fixed bit matrices),
// one per KV head.
Pattern drawn(const Pattern& pattern, const BlockSelection& selection, const ExecContext& ctx) {
  const std::vector<std::int32_t> kept = to_host<std::int32_t>(selection.kept, ctx.stream);
  const std::int64_t rows = selection.kept.dim(0), heads = selection.kept.dim(1), room = selection.kept.dim(2);
  const std::int64_t words = (rows + 31) / 32, matrix = rows * words;
  std::vector<std::uint32_t> by_head(static_cast<std::size_t>(heads * matrix));
  std::vector<BlockRule> rules;
  std::vector<std::int32_t> of_head;
  for (std::int64_t h = 0; h < heads; ++h) {
    BlockRule rule{.kind = BlockRuleKind::drawn};
    rule.first_word = h * matrix;
    rule.rows = static_cast<std::int32_t>(rows), rule.words = static_cast<std::int32_t>(words);
    rules.push_back(rule);
    of_head.push_back(static_cast<std::int32_t>(h));
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t n = 0; n < room; ++n)
        if (const std::int32_t k = kept[static_cast<std::size_t>((row * heads + h) * room + n)]; k != kNoBlock)
          by_head[static_cast<std::size_t>(h * matrix + row * words + k / 32)] |= 1u << (k % 32);
  }
  Pattern p = pattern;
  p.blocks = std::make_shared<const BlockPattern>(pattern.blocks->block(), rules, of_head, by_head);
  return p;
}

// Copies one head of [N,H,D] to [N,D].
Tensor head_of(const Tensor& x, std::int64_t head, const ExecContext& ctx) {
  const Tensor out = ctx.empty({x.dim(0), x.dim(2)});
  const float* from = x.data<float>() + head * x.stride(1);
  for (std::int64_t n = 0; n < x.dim(0); ++n)
    std::copy_n(from + n * x.stride(0), x.dim(2), out.data<float>() + n * x.dim(2));
  return out;
}

struct RowReading {
  double recall = 0, entropy = 0, dense_entropy = 0;
};

// Entropy of the softmax weights exp(x) / sum. Accumulates sum = sum of exp(x) and logs = sum of x exp(x); the entropy
// is log(sum) - logs / sum.
struct Weights {
  double sum = 0, logs = 0;
  void add(double x, double weight) { sum += weight, logs += weight * x; }
  double entropy() const { return std::log(sum) - logs / sum; }
};

using PoolScores = std::vector<std::span<const float>>;  // scores of the pools that a query sees, by pool size

// Measures the attention of one query. The last of `scores` is its score with its own key. gate: added to the scores of
// all pools that the query sees. weights: cells of `cell` keys, to which the query's dense attention weights are added.
RowReading read_row(const float* scores, std::int64_t keys, double scale, const std::vector<KeyRun>& runs,
                    const PoolScores& pools, double gate, std::int64_t cell, double* weights) {
  const double max = scale * *std::max_element(scores, scores + keys);  // maximum of scale * scores, since scale > 0
  const auto x = [&](std::int64_t u) { return scale * scores[u] - max; };
  Weights all, kept;
  double once = 0;
  std::vector<double> weight(static_cast<std::size_t>(keys));
  for (std::int64_t u = 0; u < keys; ++u) all.add(x(u), weight[static_cast<std::size_t>(u)] = std::exp(x(u)));
  for_key_ranges(runs, [&](std::int32_t first, std::int32_t end, int times) {
    for (std::int32_t u = first; u < end; ++u) {
      kept.add(x(u), times * weight[static_cast<std::size_t>(u)]);
      once += weight[static_cast<std::size_t>(u)];
    }
  });
  for (const std::span<const float> of_size : pools)
    for (const float score : of_size) kept.add(scale * score + gate - max, std::exp(scale * score + gate - max));
  for (std::int64_t u = 0; u < keys; ++u) weights[u / cell] += weight[static_cast<std::size_t>(u)] / all.sum;
  // If m branches keep a key, it enters the entropy as m keys with weight exp(x) each.
  return {once / all.sum, kept.entropy(), all.entropy()};
}

// The keys [N,D] of one KV head, and their pools by size.
struct Keys {
  Tensor tokens;
  std::vector<std::int32_t> sizes;
  std::vector<Tensor> pooled;

  // weights: this head's pool weights; if empty, pools are means.
  Keys(const Tensor& k, const Tensor& v, const std::vector<std::int32_t>& pools,
       const std::vector<PoolWeights>& weights, const ExecContext& ctx)
      : tokens(k) {
    for (std::size_t i = 0; i < pools.size(); ++i) {
      const std::int32_t size = pools[i];
      const auto count = static_cast<std::int32_t>(k.dim(0) / size);
      if (count == 0) continue;
      sizes.push_back(size), pooled.push_back(ctx.empty({count, k.dim(1)}));
      const auto heads = [](const Tensor& t) { return t.view({t.dim(0), 1, t.dim(1)}); };
      const std::vector<PoolSegment> rows = {{.count = count * size}};
      const Tensor keys = heads(pooled.back());
      if (weights.empty())
        block_pool_kernel({heads(k), keys, rows, size}, ctx);
      else
        weighted_pool_kernel({heads(k), heads(v), heads(v), weights[i].positions, weights[i].query, keys,
                              ctx.empty(keys.shape()), ctx.empty({count, 1, size}), rows},
                             ctx);
    }
  }

  // Returns the scores of these queries for all pools, by pool size.
  std::vector<Tensor> scores(const Tensor& queries, const ExecContext& ctx) const {
    std::vector<Tensor> by_size;
    for (const Tensor& keys : pooled) {
      by_size.push_back(ctx.empty({queries.dim(0), keys.dim(0)}));
      matmul_kernel({queries, keys, by_size.back(), false, true}, ctx);
    }
    return by_size;
  }
  // Returns the scores of the pools that query t sees; query t is row i of `scores`.
  PoolScores seen(const std::vector<Tensor>& scores, std::int64_t i, std::int64_t t) const {
    PoolScores all;
    for (std::size_t s = 0; s < sizes.size(); ++s)
      all.emplace_back(scores[s].data<float>() + i * scores[s].dim(1), static_cast<std::size_t>(t / sizes[s]));
    return all;
  }
};

// Adds the queries of one query head to the sums of its KV head. gates: pool gates by query; null means that all are 0.
void add_query_head(HeadReading& to, const Tensor& q, const Keys& k, const float* gates, double scale,
                    const SeenKeys& seen, std::int32_t kv_head, const ExecContext& ctx) {
  const std::int64_t length = q.dim(0), side = to.weights.side();
  for (std::int64_t first = 0; first < length; first += kRows) {
    const std::int64_t rows = std::min(kRows, length - first), keys = first + rows;
    const Tensor scores = ctx.empty({rows, keys});
    matmul_kernel({q.narrow(0, first, rows), k.tokens.narrow(0, 0, keys), scores, false, true}, ctx);
    const std::vector<Tensor> pools = k.scores(q.narrow(0, first, rows), ctx);
    std::vector<RowReading> read(static_cast<std::size_t>(rows));
    std::vector<double> weights(static_cast<std::size_t>(rows * side));
    ctx.stream.pool().parallel_for(rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
      std::vector<KeyRun> runs;
      for (std::int64_t i = begin; i < end; ++i) {
        runs.clear();
        seen.add(kv_head, static_cast<std::int32_t>(first + i), static_cast<std::int32_t>(length), runs);
        read[static_cast<std::size_t>(i)] =
            read_row(scores.data<float>() + i * keys, first + i + 1, scale, runs, k.seen(pools, i, first + i),
                     gates ? gates[first + i] : 0, to.weights.size(), weights.data() + i * side);
      }
    });
    for (std::int64_t i = 0; i < rows; ++i) {
      const RowReading& r = read[static_cast<std::size_t>(i)];
      to.recall += r.recall, to.entropy += r.entropy, to.dense_entropy += r.dense_entropy;
      for (std::int64_t j = 0; j < side; ++j)
        to.weights.kept((first + i) / to.weights.size(), j) += weights[static_cast<std::size_t>(i * side + j)];
    }
  }
}

void divide(HeadReading& r, std::int64_t query_heads, std::int64_t length) {
  const auto heads = static_cast<double>(query_heads), queries = heads * static_cast<double>(length);
  r.recall /= queries, r.entropy /= queries, r.dense_entropy /= queries;
  for (std::int64_t i = 0; i < r.weights.side(); ++i)
    for (std::int64_t j = 0; j <= i; ++j) r.weights.kept(i, j) /= heads;
}

}  // namespace

double LayerReading::mean(double HeadReading::*number) const {
  double sum = 0;
  for (const HeadReading& h : heads) sum += h.*number;
  return sum / static_cast<double>(heads.size());
}

LayerReading read_attention(const AttendedHeads& a, std::int64_t max_cells, const ExecContext& ctx) {
  const std::int64_t length = a.q.dim(0), kv_heads = a.k.dim(1), group = a.q.dim(1) / kv_heads;
  LayerReading layer{
      .kept = a.pattern.selects() ? drawn(a.pattern, a.selection, ctx) : a.pattern, .heads = {}, .cost = {}};
  layer.cost = cost_of(layer.kept, kv_heads, length);
  const SeenKeys seen(layer.kept);
  for (std::int64_t h = 0; h < kv_heads; ++h) {
    HeadReading head{.weights = PairCells(length, max_cells, CellWhole::queries),
                     .cost = cost_of(of_heads(layer.kept, {h, 1}), 1, length)};
    const Keys k(head_of(a.k, h, ctx), a.pools.empty() ? Tensor{} : head_of(a.v, h, ctx), layer.kept.pools,
                 of_heads(a.pools, {h, 1}), ctx);
    for (std::int64_t g = 0; g < group; ++g)
      add_query_head(head, head_of(a.q, h * group + g, ctx), k,
                     a.pool_gates.defined() ? a.pool_gates.data<float>() + (h * group + g) * length : nullptr, a.scale,
                     seen, static_cast<std::int32_t>(h), ctx);
    divide(head, group, length);
    layer.heads.push_back(std::move(head));
  }
  return layer;
}

std::vector<LayerReading> read_layers(Model& model, const std::vector<std::int32_t>& tokens, std::int64_t max_cells,
                                      const ExecContext& ctx) {
  if (has_gated_delta_net(model.config()))
    fail("some layers are gated delta nets (model.mixers), which have no attention to read. Omit --text");
  std::vector<LayerReading> layers;
  for (AttentionLayer* layer : model.attention_layers())
    layer->watch = [&](const AttendedHeads& a) { layers.push_back(read_attention(a, max_cells, ctx)); };
  Run run{ctx};
  model.hidden(run, from_host(tokens, ctx.stream),
               Sequences::uniform(1, static_cast<std::int64_t>(tokens.size()), ctx));
  for (AttentionLayer* layer : model.attention_layers()) layer->watch = nullptr;
  return layers;
}

}  // namespace ring
