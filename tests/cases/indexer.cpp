// The block indexer, as defined.
#include "autograd/learned/indexer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/philox.h"
#include "kernels/attention/blocks.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

std::int32_t sum_of(const std::vector<std::int32_t>& v) { return std::accumulate(v.begin(), v.end(), 0); }

// Buckets begin at 1, 2, .. 7, and from 8 on at quarters between powers of two; the last bucket is unbounded.
std::int64_t bucket_of(std::int64_t distance, std::int64_t count) {
  std::vector<std::int64_t> begins = {1, 2, 3, 4, 5, 6, 7};
  for (std::int64_t power = 8; std::ssize(begins) < count; power *= 2)
    for (std::int64_t quarter = 0; quarter < 4; ++quarter) begins.push_back(power + quarter * power / 4);
  begins.resize(static_cast<std::size_t>(count));
  return std::ranges::upper_bound(begins, distance) - begins.begin() - 1;
}

Values scores_of(const IndexShape& s, const std::vector<std::int32_t>& blocks, std::int64_t columns, const Values& x,
                 const Values& biases) {
  Values out(static_cast<std::size_t>(sum_of(blocks) * s.count * columns));
  const auto at = [&](std::int64_t row, std::int64_t column) {
    return x[static_cast<std::size_t>(row * (s.heads * s.dim + s.dim + s.kv_heads * s.heads) + column)];
  };
  std::int64_t first = 0;
  for (const std::int32_t count : blocks) {
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t g = 0; g < s.count; ++g)
        for (std::int64_t j = 0; j < i; ++j) {
          double score = 0;
          for (std::int64_t h = 0; h < s.heads; ++h) {
            double product = 0;
            for (std::int64_t c = 0; c < s.dim; ++c)
              product += at(first + i - 1, h * s.dim + c) * at(first + j, s.heads * s.dim + c);
            const double weight = at(first + i - 1, (s.heads + 1) * s.dim + (s.first_head + g) * s.heads + h);
            score += weight * std::max(product, 0.0);
          }
          score /= std::sqrt(static_cast<double>(s.heads * s.dim));
          if (s.distances > 0)
            score += kDistanceScale *
                     biases[static_cast<std::size_t>((s.first_head + g) * s.distances + bucket_of(i - j, s.distances))];
          out[static_cast<std::size_t>(((first + i) * s.count + g) * columns + j)] = score;
        }
    first += count;
  }
  return out;
}

// Products are positive or negative depending on query and head, and never near 0, where relu has no derivative.
Values projected(const std::string& name, const IndexShape& s, std::int64_t rows) {
  Values x = random_values("index_scores/" + name, rows * s.width());
  const RandomSite site{.seed = 3, .site = site_of(name)};
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t c = 0; c < (s.heads + 1) * s.dim; ++c) {
      double& value = x[static_cast<std::size_t>(row * s.width() + c)];
      value = 0.2 + 0.8 * std::abs(value);
      if (c < s.heads * s.dim && random_bits(site, static_cast<std::uint64_t>(row * s.heads + c / s.dim)) % 2)
        value *= -1;
    }
  return x;
}

// Returns the scores of the kept blocks. The rules keep these blocks whatever the scores are: all blocks if there are
// no more than a rule's `keep`, else the blocks that the rule always keeps.
Values kept_of(const Values& scores, std::int64_t columns, const std::vector<std::int32_t>& blocks,
               const BlockPattern& pattern, std::int64_t heads, std::int64_t room) {
  Values out;
  std::size_t at = 0;
  for (const std::int32_t count : blocks)
    for (std::int32_t i = 0; i < count; ++i)
      for (std::int32_t g = 0; g < heads; ++g, at += static_cast<std::size_t>(columns)) {
        const BlockRule& r = pattern.rule(g);
        const std::size_t end = out.size() + static_cast<std::size_t>(room);
        for (std::int32_t j = 0; j <= i; ++j)
          if (r.keep >= count || (r.kind == BlockRuleKind::content ? j < r.first || i - j < r.local : r.keeps(g, i, j)))
            out.push_back(scores[at + static_cast<std::size_t>(j)]);
        out.resize(end);
      }
  return out;
}

// rules: one per scored head; the blocks that a rule keeps must not depend on the scores.
OpCase scores(const std::string& name, const IndexShape& s, const std::vector<std::int32_t>& blocks,
              const std::vector<BlockRule>& rules = {{.kind = BlockRuleKind::content, .keep = 1000}}) {
  const std::int64_t columns = std::ranges::max(blocks);
  std::vector<std::int32_t> of_head;
  for (std::int32_t g = 0; g < s.count; ++g) of_head.push_back(g % static_cast<std::int32_t>(rules.size()));
  const auto pattern = std::make_shared<const BlockPattern>(64, rules, of_head);
  const std::int64_t room = max_kept_blocks(*pattern, s.count, static_cast<std::int32_t>(columns));
  OpCase c;
  c.op = "index_scores";
  c.name = name;
  c.inputs = {
      {.name = "projected", .shape = {sum_of(blocks), s.width()}, .values = projected(name, s, sum_of(blocks))}};
  const bool biased = s.distances > 0;
  if (biased) c.inputs.push_back({.name = "biases", .shape = {s.biases()}, .scale = 0.1});
  c.oracle = [=](const std::vector<Values>& in) {
    const Values all = scores_of(s, blocks, columns, in[0], biased ? in[1] : Values{});
    return std::vector<Values>{kept_of(all, columns, blocks, *pattern, s.count, room)};
  };
  c.run = [=](Run& run, const std::vector<Var>& in) {
    return std::vector<Var>{
        index_select(run, in[0], biased ? in[1] : Var{}, s, whole_documents(blocks), sum_of(blocks), pattern).scores};
  };
  double pairs = 0;
  for (const std::int32_t n : blocks) pairs += 0.5 * n * (n - 1);
  c.flops = 2 * pairs * static_cast<double>(s.heads * (s.dim + s.count));
  c.backward_flops = 3 * c.flops;
  c.bytes = 4.0 * static_cast<double>(sum_of(blocks) * (s.width() + 2 * s.count * room) + s.biases());
  c.backward_bytes = 4.0 * static_cast<double>(sum_of(blocks) * (2 * s.width() + 2 * s.count * room) + s.biases());
  return c;
}

// Documents of these numbers of tokens, in blocks of 64, with rules by KV head. The first block lacks `skipped` tokens.
struct Losses {
  std::vector<std::pair<std::int32_t, std::int32_t>> documents;
  std::vector<BlockRule> rules;
  double share, scale;
  int left_out;  // every n-th block is not selected; 0: all are selected

  std::vector<PoolSegment> pooled() const {
    std::vector<PoolSegment> all;
    std::int32_t first = 0, row = 0;
    for (const auto& [count, skipped] : documents) {
      all.push_back({.first = first, .count = count, .leading_gap = skipped, .out = row});
      first += count, row += all.back().blocks(64);
    }
    return all;
  }
  std::int64_t rows() const { return pooled().back().out + pooled().back().blocks(64); }
  std::int64_t columns() const {
    std::int32_t most = 0;
    for (const PoolSegment& d : pooled()) most = std::max(most, d.blocks(64));
    return most + 1;
  }
  bool selected(std::int64_t row, std::int64_t head, std::int64_t j) const {
    return left_out == 0 || (row + head + j) % left_out != 0;
  }
  // Returns lists of the selected blocks, [rows, heads, columns]. They include blocks after the query block.
  Values kept() const {
    Values all;
    for (std::int64_t row = 0; row < rows(); ++row)
      for (std::int64_t head = 0; head < std::ssize(rules); ++head) {
        const std::size_t end = all.size() + static_cast<std::size_t>(columns());
        for (std::int64_t j = 0; j < columns(); ++j)
          if (selected(row, head, j)) all.push_back(static_cast<double>(j));
        all.resize(end, kNoBlock);
      }
    return all;
  }
  // Returns the position of a selected block in the list of its row.
  std::int64_t position(std::int64_t row, std::int64_t head, std::int64_t j) const {
    std::int64_t before = 0;
    for (std::int64_t k = 0; k < j; ++k) before += selected(row, head, k);
    return before;
  }
};

double loss_of(const Losses& l, const Values& scores, const Values& mass) {
  const std::int64_t heads = std::ssize(l.rules), columns = l.columns();
  double loss = 0;
  for (const PoolSegment& d : l.pooled())
    for (std::int32_t i = 0; i < d.blocks(64); ++i) {
      int tokens = 0;
      for (std::int32_t t = 0; t < d.count; ++t) tokens += (t + d.leading_gap) / 64 == i;
      for (std::int64_t g = 0; g < heads; ++g) {
        const BlockRule& rule = l.rules[static_cast<std::size_t>(g)];
        if (rule.kind != BlockRuleKind::content) continue;
        double total_mass = 0, total = 0;
        const auto at = [&](std::int64_t j) {
          return static_cast<std::size_t>(((d.out + i) * heads + g) * columns + l.position(d.out + i, g, j));
        };
        std::vector<std::int64_t> candidates;
        for (std::int64_t j = rule.first; j + rule.local <= i; ++j)
          if (l.selected(d.out + i, g, j)) candidates.push_back(j);
        for (const std::int64_t j : candidates) total_mass += mass[at(j)], total += std::exp(scores[at(j)]);
        for (const std::int64_t j : candidates)
          if (mass[at(j)] > 0)
            loss += l.share * tokens * mass[at(j)] / total_mass *
                    (std::log(mass[at(j)] / total_mass) - scores[at(j)] + std::log(total));
      }
    }
  return loss;
}

OpCase losses(const std::string& name, const Losses& l) {
  OpCase c;
  c.op = "index_loss";
  c.name = name;
  c.root = true;
  c.root_scale = l.scale;
  c.half = false;  // scores are f32
  const std::int64_t heads = std::ssize(l.rules);
  const Shape shape{l.rows(), heads, l.columns()};
  Values mass = random_values("index_loss/mass", shape.numel());
  for (double& m : mass) m = m < -0.8 ? 0 : m + 0.8;
  for (std::int64_t j = 0; j < l.columns(); ++j)  // a row without mass on any candidate
    mass[static_cast<std::size_t>((l.rows() - 1) * heads * l.columns() + j)] = 0;
  c.inputs = {{.name = "scores", .shape = shape, .scale = 3},
              {.name = "mass", .shape = shape, .values = mass, .differentiable = false},
              {.name = "kept", .shape = shape, .values = l.kept(), .dtype = DType::i32}};
  c.oracle = [=](const std::vector<Values>& in) { return std::vector<Values>{{loss_of(l, in[0], in[1])}}; };
  c.run = [=](Run& run, const std::vector<Var>& in) {
    std::vector<std::int32_t> of_head;
    for (std::int64_t g = 0; g < heads; ++g) of_head.push_back(static_cast<std::int32_t>(g));
    const IndexTarget target{in[1].value, in[2].value, l.pooled(),
                             std::make_shared<BlockPattern>(64, l.rules, of_head)};
    return std::vector<Var>{index_loss(run, in[0], target, static_cast<float>(l.share), static_cast<float>(l.scale))};
  };
  c.bytes = 8.0 * static_cast<double>(shape.numel());
  c.backward_bytes = 0;
  return c;
}

std::vector<OpCase> indexer_cases() {
  const BlockRule content{.kind = BlockRuleKind::content, .local = 1, .keep = 1000},
      with_first{.kind = BlockRuleKind::content, .local = 2, .first = 1, .keep = 1000}, closed{.local = 2},
      forced{.kind = BlockRuleKind::content, .local = 3, .first = 2, .keep = 5};
  return {
      scores("H1_D1", {.heads = 1, .dim = 1}, {3}),
      scores("H4_D32_documents", {.heads = 4, .dim = 32, .kv_heads = 2, .count = 2}, {5, 1, 0, 9}),
      scores("H3_D7_some_heads", {.heads = 3, .dim = 7, .kv_heads = 5, .first_head = 1, .count = 3}, {6, 2}),
      scores("H16_D128_long", {.heads = 16, .dim = 128, .kv_heads = 1}, {70}),
      scores("H4_D16_rows", {.heads = 4, .dim = 16, .kv_heads = 2, .count = 2}, {150, 3}),
      scores("H2_D4_distances", {.heads = 2, .dim = 4, .kv_heads = 4, .first_head = 1, .count = 2, .distances = 12},
             {30, 1, 0, 9}),
      scores("H1_D3_one_distance", {.heads = 1, .dim = 3, .kv_heads = 1, .distances = 1}, {7}),
      scores("H1_D4_all_distances", {.heads = 1, .dim = 4, .kv_heads = 2, .count = 2, .distances = 64}, {150, 70}),
      scores("H1_D2_distances_of_many", {.heads = 1, .dim = 2, .kv_heads = 1, .distances = 3},
             std::vector<std::int32_t>(70, 5)),
      // Lists that are shorter than rows: only the scores of their blocks have gradients.
      scores("H3_D7_of_lists", {.heads = 3, .dim = 7, .kv_heads = 3, .count = 3, .distances = 12}, {40, 1, 90},
             {forced, {.local = 2, .every = 7}, {.kind = BlockRuleKind::content, .local = 9, .keep = 9}}),
      scores("H4_D32_of_long_lists", {.heads = 4, .dim = 32, .kv_heads = 1}, {150, 130},
             {{.kind = BlockRuleKind::content, .local = 70, .first = 20, .keep = 90}}),
      losses("one", {{{64 * 6, 0}}, {content}, 1, 1, 0}),
      losses("documents", {{{64 * 5 + 9, 0}, {3, 50}, {64 * 40, 20}}, {with_first, content}, 0.5, 1, 0}),
      losses("selected", {{{64 * 9, 0}, {64 * 70 + 1, 7}}, {content, closed, with_first}, 0.3, 2.5, 3}),
  };
}

const AddCases added_indexers(indexer_cases);

}  // namespace
}  // namespace ring::test
