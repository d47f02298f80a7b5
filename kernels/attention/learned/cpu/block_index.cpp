// The block indexer. Each task computes one row, for a block of queries or of keys, and writes only this row.

#include "kernels/attention/learned/block_index.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention/blocks.h"
#include "kernels/attention/cpu/common.h"
#include "kernels/cpu/vec.h"
#include "kernels/rows.h"

namespace ring::cpu {
namespace {

// Access to the parts of a row of `projected` (IndexShape).
struct Projected {
  const IndexShape& shape;
  const float* data;

  Projected(const IndexShape& s, const Tensor& t) : shape(s), data(t.data<float>()) {}
  const float* query(std::int64_t row, std::int64_t h) const { return data + row * shape.width() + h * shape.dim; }
  const float* key(std::int64_t row) const { return data + row * shape.width() + shape.key(); }
  // Returns the head weights [count, heads] of the KV heads that are scored.
  const float* weights(std::int64_t row) const {
    return data + row * shape.width() + shape.weights() + shape.first_head * shape.heads;
  }
};

struct Task {
  const SelectedRows* document;
  std::int32_t block;
  std::int64_t cost;
};

// Returns one task per query block; if `whole`, also one per block before the first query block.
std::vector<Task> tasks_of(const std::vector<SelectedRows>& documents, bool whole = false) {
  std::vector<Task> tasks;
  for (const SelectedRows& d : documents)
    for (std::int32_t i = whole ? 0 : d.begin; i < d.end; ++i) tasks.push_back({&d, i, i});
  return tasks;
}

// Sets scores[j] to the bias of distance i - j, for j < i.
void begin_with_biases(const IndexShape& s, const float* biases, std::int32_t i, float* scores) {
  const auto count = static_cast<int>(s.distances);
  for (int n = 0; n < count; ++n) {
    const DistanceRange d = distances_of(n, count);
    if (d.first > i) return;
    std::fill(scores + std::max(0, i - d.end + 1), scores + (i - d.first + 1), kDistanceScale * biases[n]);
  }
}

void score_row(const IndexScores& a, const Projected& x, const SelectedRows& d, std::int32_t i) {
  const IndexShape& s = a.shape;
  const std::int64_t columns = a.scores.dim(2), asks = std::int64_t{d.queries} + i - 1;
  float* const row = a.scores.data<float>() + (std::int64_t{d.kept} + i) * s.count * columns;
  std::fill_n(row, s.count * columns, 0.0f);
  for (std::int64_t g = 0; a.biases.defined() && g < s.count; ++g)
    begin_with_biases(s, a.biases.data<float>() + (s.first_head + g) * s.distances, i, row + g * columns);
  for (std::int32_t j = 0; j < i; ++j)
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const float product = s.scale() * dot(x.query(asks, h), x.key(std::int64_t{d.keys} + j), s.dim);
      if (product <= 0) continue;  // false for NaN, which must propagate
      for (std::int64_t g = 0; g < s.count; ++g) row[g * columns + j] += x.weights(asks)[g * s.heads + h] * product;
    }
}

void run_scores(const IndexScores& a, const ExecContext& ctx) {
  check(a);
  const Projected x(a.shape, a.projected);
  share_out(tasks_of(a.documents), ctx.stream.pool(),
            [&](const Task& t, int) { score_row(a, x, *t.document, t.block); });
}

// The score gradients of one call.
struct ScoreGradients {
  SelectedBlocks kept;
  const float* data;

  template <class Args>
  explicit ScoreGradients(const Args& a) : kept({a.kept}), data(a.dscores.template data<float>()) {}
  // Returns the gradient of the score of key block j; 0 if the row does not keep it.
  float of(std::int64_t row, std::int64_t g, std::int64_t j) const {
    const auto r = static_cast<std::int32_t>(row), head = static_cast<std::int32_t>(g);
    const std::int32_t n = kept.find(r, head, static_cast<std::int32_t>(j));
    return n < 0 ? 0 : data[kept.offset(r, head) + n];
  }
};

// The pairs of blocks of one document whose scores may have a gradient: the pairs that at least one head keeps. They
// are in ascending order, and only query blocks of this call are included.
struct KeptPairs {
  std::vector<std::vector<std::int32_t>> keys, queries;  // keys[i]: kept blocks j < i; queries[j]: blocks i > j

  KeptPairs(const SelectedBlocks& kept, const SelectedRows& document)
      : keys(static_cast<std::size_t>(document.end)), queries(keys.size()) {
    for (std::int32_t i = document.begin; i < document.end; ++i) {
      std::vector<std::int32_t>& own = keys[static_cast<std::size_t>(i)];
      for (std::int32_t g = 0; g < kept.heads; ++g) {
        const std::uint32_t* const list = kept.row(document.kept + i, g);
        own.insert(own.end(), list, list + kept.first_from(document.kept + i, g, i));
      }
      std::ranges::sort(own);
      own.erase(std::ranges::unique(own).begin(), own.end());
      for (const std::int32_t j : own) queries[static_cast<std::size_t>(j)].push_back(i);
    }
  }
};

// Gradient of one row of `projected`. The row's queries and head weights affect the scores of the next block, and its
// key affects the scores of all later blocks.
struct RowGradient {
  const IndexScoresBackward& args;
  const Projected& x;
  const ScoreGradients& dscores;
  std::int64_t first, first_scores;  // rows of the document's block 0 in `projected` and in `dscores`
  std::vector<float> row;

  RowGradient(const IndexScoresBackward& a, const Projected& projected, const ScoreGradients& d,
              const SelectedRows& document)
      : args(a),
        x(projected),
        dscores(d),
        first(document.keys),
        first_scores(document.kept),
        row(static_cast<std::size_t>(a.shape.width())) {}

  // Returns the gradient of the dot product of query head h of block i - 1 and key j, which applies if it is positive.
  float of_product(std::int64_t i, std::int64_t h, std::int64_t j) const {
    const IndexShape& s = args.shape;
    float sum = 0;
    for (std::int64_t g = 0; g < s.count; ++g)
      sum += x.weights(first + i - 1)[g * s.heads + h] * dscores.of(first_scores + i, g, j);
    return s.scale() * sum;
  }
  void add_pair(std::int64_t i, std::int64_t h, std::int64_t j, bool as_key) {
    const IndexShape& s = args.shape;
    const float *q = x.query(first + i - 1, h), *k = x.key(first + j), product = dot(q, k, s.dim);
    if (product <= 0) return;
    const float d = of_product(i, h, j), *other = as_key ? q : k;
    float* const out = row.data() + (as_key ? s.key() : h * s.dim);
    for (std::int64_t c = 0; c < s.dim; ++c) out[c] += d * other[c];
    if (as_key) return;
    float* const weights = row.data() + s.weights() + s.first_head * s.heads;
    for (std::int64_t g = 0; g < s.count; ++g)
      weights[g * s.heads + h] += s.scale() * product * dscores.of(first_scores + i, g, j);
  }
  void write(std::int64_t to) const {
    float* const out = args.dprojected.data<float>() + to * args.shape.width();
    for (std::size_t c = 0; c < row.size(); ++c) out[c] = args.beta == 0 ? row[c] : args.beta * out[c] + row[c];
  }
};

void run_scores_backward(const IndexScoresBackward& a, const ExecContext& ctx) {
  check(a);
  const Projected x(a.shape, a.projected);
  const ScoreGradients dscores(a);
  for (const SelectedRows& document : a.documents) {
    const KeptPairs pairs(dscores.kept, document);
    share_out(tasks_of({document}, true), ctx.stream.pool(), [&](const Task& t, int) {
      RowGradient gradient(a, x, dscores, document);
      const std::int32_t p = t.block;
      for (std::int64_t h = 0; h < a.shape.heads; ++h) {
        if (p + 1 < document.end)
          for (const std::int32_t j : pairs.keys[static_cast<std::size_t>(p + 1)])
            gradient.add_pair(p + 1, h, j, false);
        for (const std::int32_t i : pairs.queries[static_cast<std::size_t>(p)]) gradient.add_pair(i, h, p, true);
      }
      gradient.write(std::int64_t{document.keys} + p);
    });
  }
}

// Returns the sum of one head's dscores over a range of distances.
double sum_over(const IndexDistancesBackward& a, std::int64_t g, DistanceRange range) {
  const ScoreGradients dscores(a);
  const auto head = static_cast<std::int32_t>(g);
  double sum = 0;
  for (const SelectedRows& d : a.documents)
    for (std::int32_t i = std::max(range.first, d.begin); i < d.end; ++i) {
      const std::int32_t row = d.kept + i, first = std::max(0, i - range.end + 1);
      for (std::int32_t n = dscores.kept.first_from(row, head, first),
                        end = dscores.kept.first_from(row, head, i - range.first + 1);
           n < end; ++n)
        sum += dscores.data[dscores.kept.offset(row, head) + n];
    }
  return sum;
}

void run_distances_backward(const IndexDistancesBackward& a, const ExecContext& ctx) {
  check(a);
  const auto buckets = static_cast<int>(a.shape.distances);
  ctx.stream.pool().parallel_for(a.shape.biases(), 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t e = begin; e < end; ++e) {
      const std::int64_t g = e / buckets - a.shape.first_head;
      const bool scored = g >= 0 && g < a.shape.count;
      const double sum = scored ? sum_over(a, g, distances_of(static_cast<int>(e % buckets), buckets)) : 0;
      float& out = a.dbiases.data<float>()[e];
      out = (a.beta == 0 ? 0 : a.beta * out) + kDistanceScale * static_cast<float>(sum);
    }
  });
}

// The candidates and the loss of one KV head of one query block.
struct LossRow {
  const IndexLoss& args;
  std::int64_t at;  // offset of the row in scores, mass and gradient

  const float* scores() const { return args.scores.data<float>() + at; }
  const float* mass() const { return args.mass.data<float>() + at; }
  // Returns the indices of the candidates in the row's list.
  std::vector<std::int64_t> candidates(const BlockRule& rule, std::int64_t i) const {
    std::vector<std::int64_t> all;
    const std::int32_t* const kept = args.kept.data<std::int32_t>() + at;
    for (std::int64_t n = 0; rule.kind == BlockRuleKind::content && n < args.kept.dim(2) && kept[n] != kNoBlock; ++n)
      if (kept[n] >= rule.first && kept[n] <= i - rule.local) all.push_back(n);
    return all;
  }
  // Returns the KL divergence. If `gradient` is defined, overwrites its row with `factor` times the gradient of the KL.
  float run(const std::vector<std::int64_t>& candidates, float factor) const {
    double sum = 0, total = 0, divergence = 0;
    float max = -INFINITY;
    for (const std::int64_t n : candidates) sum += mass()[n], max = std::max(max, scores()[n]);
    for (const std::int64_t n : candidates) total += std::exp(static_cast<double>(scores()[n]) - max);
    std::vector<float> gradients;
    for (const std::int64_t n : candidates) {
      if (!(sum > 0)) break;
      const double p = mass()[n] / sum, log_q = static_cast<double>(scores()[n]) - max - std::log(total);
      if (p > 0) divergence += p * (std::log(p) - log_q);
      gradients.push_back(factor * static_cast<float>(std::exp(log_q) - p));
    }
    if (!args.gradient.defined()) return static_cast<float>(divergence);
    float* const out = args.gradient.data<float>() + at;
    std::fill_n(out, args.scores.dim(2), 0.0f);
    for (std::size_t n = 0; n < gradients.size(); ++n) out[candidates[n]] = gradients[n];
    return static_cast<float>(divergence);
  }
};

std::int32_t tokens_of(const PoolSegment& d, std::int32_t block, std::int32_t i) {
  return std::min(d.count, (i + 1) * block - d.leading_gap) - std::max(0, i * block - d.leading_gap);
}

void run_loss(const IndexLoss& a, const ExecContext& ctx) {
  check(a);
  const std::int64_t heads = a.scores.dim(1), room = a.scores.dim(2);
  const float loss_scale = a.state.defined() ? gradient_scale(state_of("index_loss", a.state)) : 1;
  const std::int32_t block = a.blocks->block();
  for (const PoolSegment& d : a.documents)
    ctx.stream.pool().parallel_for(d.blocks(block), 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int32_t tokens = tokens_of(d, block, static_cast<std::int32_t>(i));
        if (tokens <= 0) continue;
        const float share = a.share * static_cast<float>(tokens);
        float sum = 0;
        for (std::int64_t g = 0; g < heads; ++g) {
          const LossRow row{a, ((d.out + i) * heads + g) * room};
          sum += row.run(row.candidates(a.blocks->rule(static_cast<std::int32_t>(g)), i), a.scale * loss_scale * share);
        }
        a.loss.data<float>()[d.out + i] = share * sum;
      }
    });
}

const bool added[] = {index_scores_kernel.add(Backend::cpu, {"rows", run_scores}),
                      index_scores_backward_kernel.add(Backend::cpu, {"rows", run_scores_backward}),
                      index_distances_backward_kernel.add(Backend::cpu, {"rows", run_distances_backward}),
                      index_loss_kernel.add(Backend::cpu, {"rows", run_loss})};

}  // namespace
}  // namespace ring::cpu
