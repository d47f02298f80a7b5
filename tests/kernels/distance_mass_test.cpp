// Attention mass by distance: the kernel against its definition, and the whole computation from queries and keys
// against weights in fp64.

#include "kernels/attention/importance/distance_mass.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kept_blocks.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/print_backend.h"

namespace ring::test {
namespace {

class DistanceMasses : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!backend_available(GetParam())) GTEST_SKIP() << "no device";
  }
  ExecContext context() const {
    return GetParam() == Backend::cpu ? poisoned_context(3) : poisoned_device_context({GetParam(), 0});
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, DistanceMasses, testing::Values(Backend::cpu));
INSTANTIATE_TEST_SUITE_P(Gpu, DistanceMasses, testing::Values(Backend::cuda));

const std::vector<std::int32_t> kLengths = {300, 1, 70, 129, 700}, kPackedRows = {3, 304}, kFirst = {1, 0};

TEST_P(DistanceMasses, AreSumsOverRows) {
  const ExecContext ctx = context();
  const Pattern content = block_sparse(64, {{.kind = BlockRuleKind::content, .local = 1, .keep = 9}});
  const AttentionProblem p = with_selection(problem_of(content, offsets_of(kLengths, 3), kPackedRows, 5));
  const std::vector<std::int32_t> first = first_blocks(p.pattern, p.queries);
  const std::int64_t rows = first.back(), heads = p.kv_heads, blocks = 13, distances = 15;
  const Values mass = random_values("mass", rows * heads * blocks);
  const Tensor out = ctx.empty({2, heads, distances});
  // The mass also covers blocks that the selection does not count.
  std::vector<std::int32_t> massed = p.selection;
  for (std::size_t i = 0; i < massed.size(); ++i) massed[i] |= 0x49;
  const Tensor kept = kept_of_bits(massed, heads, p.words(), ctx);
  const Values given = by_kept(mass, blocks, to_host<std::int32_t>(kept, ctx.stream), kept.dim(2));
  distance_mass_kernel({make_tensor(kept.shape(), DType::f32, given, ctx),
                        out,
                        {kept_of_bits(p.selection, heads, p.words(), ctx)},
                        {kept},
                        p.queries,
                        p.pattern},
                       ctx);
  Values sums(static_cast<std::size_t>(heads * distances)), counts = sums;
  for (std::size_t b = 0; b < p.queries.size(); ++b)
    for (std::int64_t i = first[b]; i < first[b + 1]; ++i)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t j = 0; j <= i - first[b]; ++j) {
          const auto word =
              static_cast<std::uint32_t>(p.selection[static_cast<std::size_t>((i * heads + h) * p.words() + j / 32)]);
          if (!(word >> (j % 32) & 1u)) continue;
          const auto at = static_cast<std::size_t>(h * distances + i - first[b] - j);
          sums[at] += mass[static_cast<std::size_t>((i * heads + h) * blocks + j)], ++counts[at];
        }
  const Values got = read_values(out, ctx);
  for (std::size_t n = 0; n < sums.size(); ++n) {
    EXPECT_NEAR(got[n], sums[n], 1e-5) << n;
    EXPECT_EQ(got[sums.size() + n], counts[n]) << n;
  }
}

// Returns the sum of calls that each have only the queries of rows [cuts[i], cuts[i + 1]).
Values sum_of_parts(const Attention& whole, const std::vector<std::int64_t>& cuts, std::int64_t distances,
                    const ExecContext& ctx) {
  Values sum(static_cast<std::size_t>(2 * whole.k.dim(1) * distances));
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const auto begin = static_cast<std::int32_t>(cuts[i]), end = static_cast<std::int32_t>(cuts[i + 1]);
    Attention part = whole;
    part.q = whole.q.narrow(0, begin, end - begin), part.queries.clear(), part.keys.clear();
    for (const Span& s : whole.queries) {
      const std::int32_t from = std::max(s.first, begin), to = std::min(s.first + s.count, end);
      if (from >= to) continue;
      part.queries.push_back({from - begin, to - from, s.position + from - s.first, s.document});
      part.keys.push_back(s);
    }
    const Values more = read_values(distance_masses(part, distances, kFirst, ctx), ctx);
    for (std::size_t n = 0; n < sum.size(); ++n) sum[n] += more[n];
  }
  return sum;
}

// Positional rules that differ by head. The first block of one rule does not count. Documents share blocks, with
// padding after them.
TEST_P(DistanceMasses, OfAttentionOverRules) {
  const ExecContext ctx = context();
  AttentionProblem p = problem_of(block_sparse(64, {{.local = 2, .first = 1}, {.local = 1, .every = 3}}),
                                  offsets_of(kLengths, 3), kPackedRows, 5);
  const AttentionInputs in = random_inputs(p, DType::f32);
  const Values lse = reference(p, in).lse;
  const std::vector<std::int32_t> first = first_blocks(p.pattern, p.queries);
  const std::int64_t heads = p.kv_heads, group = p.heads / heads, distances = 14;
  // Weights by row of the selection, head and distance: means over the queries of a block and the heads of a group.
  Values sums(static_cast<std::size_t>(heads * distances)), counts = sums;
  for (std::size_t b = 0; b < p.queries.size(); ++b) {
    const Span& s = p.queries[b];
    const std::int32_t skipped = s.document % 64;
    for (std::int32_t i = 0; i < first[b + 1] - first[b]; ++i) {
      const std::int32_t from = std::max(0, i * 64 - skipped), end = std::min(s.count, (i + 1) * 64 - skipped);
      for (std::int64_t h = 0; h < p.heads; ++h)
        for (std::int32_t t = from; t < end; ++t)
          for (std::int32_t u = 0; u <= t; ++u) {
            const auto kv = static_cast<std::int32_t>(h / group);
            if (!multiplicity(p.pattern, kv, s.position + t, s.position + u, s.document)) continue;
            if ((u + skipped) / 64 < kFirst[static_cast<std::size_t>(kv)]) continue;
            double score = 0;
            for (std::int64_t c = 0; c < p.dim; ++c)
              score += in.q[static_cast<std::size_t>(((s.first + t) * p.heads + h) * p.dim + c)] *
                       in.k[static_cast<std::size_t>(((s.first + u) * heads + kv) * p.dim + c)];
            sums[static_cast<std::size_t>(kv * distances + i - (u + skipped) / 64)] +=
                std::exp(p.scale() * score - lse[static_cast<std::size_t>(h * p.query_rows + s.first + t)]) /
                static_cast<double>((end - from) * group);
          }
      for (std::int32_t kv = 0; kv < heads; ++kv)
        for (std::int32_t j = kFirst[static_cast<std::size_t>(kv)]; j <= i; ++j)
          counts[static_cast<std::size_t>(kv * distances + i - j)] += p.pattern.blocks->keeps(kv, i, j);
    }
  }
  const Attention call{.q = make_tensor({p.query_rows, p.heads, p.dim}, DType::f32, in.q, ctx),
                       .k = make_tensor({p.key_rows, heads, p.dim}, DType::f32, in.k, ctx),
                       .queries = p.queries,
                       .keys = p.keys,
                       .scale = static_cast<float>(p.scale()),
                       .pattern = p.pattern};
  const Values got = read_values(distance_masses(call, distances, kFirst, ctx), ctx),
               parts = sum_of_parts(call, {0, 130, 256, 310, 330, 440, 500, p.query_rows}, distances, ctx),
               whole = sum_of_parts(call, {0, 303, 374, p.query_rows}, distances, ctx);
  for (std::size_t n = 0; n < sums.size(); ++n)
    for (const Values& v : {got, parts, whole}) {
      EXPECT_NEAR(v[n], sums[n], 2e-5 * (1 + sums[n])) << n;
      EXPECT_EQ(v[sums.size() + n], counts[n]) << n;
    }
}

TEST(DistanceMass, WrongShapesAreRefused) {
  const ExecContext ctx{Stream::cpu(1)};
  const Pattern content = block_sparse(64, {{.kind = BlockRuleKind::content, .local = 1, .keep = 2}});
  const BlockSelection kept{ctx.zeros({3, 1, 1}, DType::i32)}, massed{ctx.zeros({3, 1, 3}, DType::i32)};
  const DistanceMass good{ctx.zeros({3, 1, 3}), ctx.zeros({2, 1, 3}), kept, massed, {{0, 130, 0, 0}}, content};
  EXPECT_NO_THROW(distance_mass_kernel(good, ctx));
  DistanceMass bad = good;
  bad.out = ctx.zeros({2, 1, 2});
  EXPECT_THROW(distance_mass_kernel(bad, ctx), Error);
  bad = good, bad.mass = ctx.zeros({3, 1, 2});
  EXPECT_THROW(distance_mass_kernel(bad, ctx), Error);
  bad = good, bad.spans[0].count = 200;
  EXPECT_THROW(distance_mass_kernel(bad, ctx), Error);
}

}  // namespace
}  // namespace ring::test
