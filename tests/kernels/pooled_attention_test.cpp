// Attention over pairs and pools, on CPUs and GPUs: causality, means and their gradients.
// (tests/cases/self_attention.cpp compares results and gradients with the definition.)

#include "kernels/attention/pools/pooled_attention.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "core/visit_all.h"
#include "kernels/attention/pools/weighted_pool.h"
#include "kernels/attention/selected/block_select.h"
#include "tests/cases/attention_oracle.h"
#include "tests/kernels/target.h"

namespace ring::test {
namespace {

class PooledAttention : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Cpu, PooledAttention, testing::Values(Target{}));
INSTANTIATE_TEST_SUITE_P(Gpu, PooledAttention,
                         testing::Values(Target{Backend::cuda, DType::f32}, Target{Backend::cuda, DType::bf16}));

constexpr std::int64_t kPooledHeads = 2, kPooledKvHeads = 1, kPooledDim = 16;

struct PooledInputs {
  Values q, k, v, dout, pooling = {}, gates = {};  // gates [Hq,N]
};
struct PooledResults {
  Values out, lse, dq, dk, dv, dpooling = {}, dgates = {};
};

PooledInputs inputs_of(std::int64_t tokens) {
  return {random_values("q", tokens * kPooledHeads * kPooledDim),
          random_values("k", tokens * kPooledKvHeads * kPooledDim),
          random_values("v", tokens * kPooledKvHeads * kPooledDim),
          random_values("dout", tokens * kPooledHeads * kPooledDim)};
}

PooledResults run(const Pattern& pattern, const std::vector<Span>& spans, std::int64_t tokens, const PooledInputs& in,
                  DType type, const ExecContext& ctx) {
  const Shape wide{tokens, kPooledHeads, kPooledDim}, narrow{tokens, kPooledKvHeads, kPooledDim};
  Attention a{.q = make_tensor(wide, type, in.q, ctx),
              .k = make_tensor(narrow, type, in.k, ctx),
              .v = make_tensor(narrow, type, in.v, ctx),
              .out = ctx.empty(wide, type),
              .lse = ctx.empty({kPooledHeads, tokens}),
              .queries = spans,
              .keys = spans,
              .scale = 0.25f,
              .pattern = pattern};
  a.selection = select_blocks(pattern, a.q, a.k, a.scale, spans, ctx);
  const bool learned = !in.pooling.empty();
  std::vector<PoolWeights> weights, dweights;
  Tensor dpooling;
  if (learned) {
    const Tensor pooling = make_tensor({std::ssize(in.pooling)}, type, in.pooling, ctx);
    dpooling = ctx.zeros(pooling.shape());
    weights = pool_weights(pooling, pattern, kPooledKvHeads, kPooledDim);
    dweights = pool_weights(dpooling, pattern, kPooledKvHeads, kPooledDim);
  }
  Tensor gates, dgates;
  if (!in.gates.empty())
    gates = make_tensor({kPooledHeads, tokens}, DType::f32, in.gates, ctx), dgates = ctx.empty(gates.shape());
  pooled_attention({a, {weights, gates}}, ctx);
  const AttentionBackward b{.q = a.q,
                            .k = a.k,
                            .v = a.v,
                            .out = a.out,
                            .lse = a.lse,
                            .dout = make_tensor(wide, type, in.dout, ctx),
                            .dq = ctx.empty(wide, type),
                            .dk = ctx.empty(narrow, type),
                            .dv = ctx.empty(narrow, type),
                            .queries = spans,
                            .keys = spans,
                            .scale = 0.25f,
                            .pattern = pattern,
                            .selection = a.selection};
  pooled_attention_backward({b, {weights, dweights, gates, dgates}}, ctx);
  return {read_values(a.out, ctx),
          read_values(a.lse, ctx),
          read_values(b.dq, ctx),
          read_values(b.dk, ctx),
          read_values(b.dv, ctx),
          learned ? read_values(dpooling, ctx) : Values{},
          gates.defined() ? read_values(dgates, ctx) : Values{}};
}

bool equal_rows(const Values& a, const Values& b, std::int64_t width, std::int64_t first, std::int64_t end) {
  return std::equal(a.begin() + first * width, a.begin() + end * width, b.begin() + first * width);
}

void replace_row(Values& v, std::int64_t width, std::int64_t row) {
  for (std::int64_t i = row * width; i < (row + 1) * width; ++i) v[static_cast<std::size_t>(i)] = i % 2 ? 3 : -2;
}

Values pooling_of(const Pattern& pattern, double scale) {
  return random_values("pooling", pool_weights_numel(pattern, kPooledKvHeads, kPooledDim), scale);
}

// Token t changes. Earlier rows and other documents stay bit-identical. Rows far after the window change exactly if
// they see a pool that contains t.
void expect_no_leak(const Target& target, bool learned, const std::function<ExecContext()>& context) {
  const std::int64_t first = 150, count = 203, tokens = first + count;
  const std::vector<Span> spans = spans_of({0, 150, 353}, {0});
  const BlockRule content{.kind = BlockRuleKind::content, .keep = 2};
  for (const Pattern& pattern : {pooled(window(3), {16}), pooled(window(3), {7, 50}),
                                 pooled(block_sparse(64, {content}), {16}), pooled(block_sparse(64, {{}}), {16, 64})}) {
    PooledInputs in = inputs_of(tokens);
    if (learned) in.pooling = pooling_of(pattern, 1), in.gates = random_values("gates", kPooledHeads * tokens, 2);
    const PooledResults before = run(pattern, spans, tokens, in, target.dtype, context());
    for (std::int64_t at : {0, 15, 16, 31, 32, 63, 64, 111, 112, 190, 202}) {
      const std::int64_t t = first + at, width = kPooledHeads * kPooledDim;
      SCOPED_TRACE(str("pools of ", pattern.pools[0], pattern.blocks ? ", blocks" : ", window", ", token ", at));
      PooledInputs changed = in;
      replace_row(changed.q, kPooledHeads * kPooledDim, t);
      replace_row(changed.k, kPooledKvHeads * kPooledDim, t);
      replace_row(changed.v, kPooledKvHeads * kPooledDim, t);
      const PooledResults after = run(pattern, spans, tokens, changed, target.dtype, context());
      EXPECT_TRUE(equal_rows(before.out, after.out, width, 0, t));
      EXPECT_FALSE(equal_rows(before.out, after.out, width, t, t + 1));
      EXPECT_TRUE(equal_rows(before.dq, after.dq, width, 0, t));
      for (const auto& [a, b] : {std::pair{&before.dk, &after.dk}, {&before.dv, &after.dv}})
        EXPECT_TRUE(equal_rows(*a, *b, kPooledKvHeads * kPooledDim, 0, first));
      if (pattern.blocks) continue;
      std::int64_t seen = count;
      for (const std::int32_t size : pattern.pools) seen = std::min(seen, (at / size + 1) * size);
      for (std::int64_t n = at + 3; n < count; ++n)
        EXPECT_EQ(equal_rows(before.out, after.out, width, first + n, first + n + 1), n < seen) << n;
    }
  }
}

TEST_P(PooledAttention, TheFutureDoesNotLeak) {
  expect_no_leak(GetParam(), false, [this] { return context(); });
}

TEST_P(PooledAttention, TheFutureDoesNotLeakIntoLearnedAndGatedPools) {
  expect_no_leak(GetParam(), true, [this] { return context(); });
}

// Untrained learned pools are bit-identical to means, forward and backward; their weights have gradients from the
// start.
TEST_P(PooledAttention, WeightsOfZeroAreMeans) {
  const std::int64_t tokens = 353;
  const std::vector<Span> spans = spans_of({0, 150, 353}, {0});
  const Pattern pattern = pooled(window(3), {7, 50});
  PooledInputs in = inputs_of(tokens);
  const PooledResults means = run(pattern, spans, tokens, in, GetParam().dtype, context());
  in.pooling = pooling_of(pattern, 0);
  const PooledResults learned = run(pattern, spans, tokens, in, GetParam().dtype, context());
  EXPECT_EQ(learned.out, means.out);
  EXPECT_EQ(learned.lse, means.lse);
  EXPECT_EQ(learned.dq, means.dq);
  EXPECT_EQ(learned.dk, means.dk);
  EXPECT_EQ(learned.dv, means.dv);
  for (const double g : learned.dpooling) EXPECT_NE(g, 0);
  in.pooling = pooling_of(pattern, 1);
  EXPECT_NE(run(pattern, spans, tokens, in, GetParam().dtype, context()).out, means.out);
}

// Gates of 0 leave results bit-identical. Gates far below 0 remove the pools, and gates far above 0 leave only the
// pools.
TEST_P(PooledAttention, GatesOpenAndShut) {
  const std::int64_t tokens = 100;
  const Pattern pattern = pooled(window(3), {8});
  PooledInputs in = inputs_of(tokens);
  const auto with = [&](double gate) {
    in.gates.assign(static_cast<std::size_t>(kPooledHeads * tokens), gate);
    return run(pattern, spans_of({0, 100}), tokens, in, GetParam().dtype, context());
  };
  const PooledResults plain = run(pattern, spans_of({0, 100}), tokens, in, GetParam().dtype, context()), zero = with(0),
                      shut = with(-1e4), open = with(100);
  EXPECT_EQ(zero.out, plain.out);
  EXPECT_EQ(zero.dk, plain.dk);
  const PooledResults alone = [&] {
    in.gates.clear();
    return run(window(3), spans_of({0, 100}), tokens, in, GetParam().dtype, context());
  }();
  for (std::size_t i = 0; i < alone.out.size(); ++i) EXPECT_NEAR(shut.out[i], alone.out[i], 1e-2) << i;
  for (const double g : shut.dgates) EXPECT_EQ(g, 0);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t h = 0; h < kPooledHeads; ++h) {
      const auto at = static_cast<std::size_t>(h * tokens + t);
      EXPECT_EQ(zero.dgates[at] != 0, t >= 8) << t;  // for tokens that see a pool
      EXPECT_EQ(open.lse[at] > 90, t >= 8) << t;
    }
}

// A token with a score far above the others becomes its pool, by position (head 0) or by value (head 1): exponentials
// do not overflow. Rows are strided; pools may be rows of the same tensor, as in a cache.
TEST_P(PooledAttention, WeightsMayPickOneToken) {
  const ExecContext ctx = context();
  const DType type = GetParam().dtype;
  const std::int64_t size = 40, heads = 2, dim = 24, rows = 3 + 2 * size + 2, width = heads * dim;
  const Tensor k = make_tensor({rows, heads, dim}, type, random_values("k", rows * width), ctx),
               v = make_tensor({rows, heads, dim}, type, random_values("v", rows * width), ctx);
  const Values from_k = read_values(k, ctx), from_v = read_values(v, ctx);
  Values positions(static_cast<std::size_t>(heads * size)), query(static_cast<std::size_t>(width));
  positions[5] = 1e4, query[static_cast<std::size_t>(dim)] = 1e4;
  weighted_pool_kernel({.k = k,
                        .v = v,
                        .x = v,
                        .positions = make_tensor({heads, size}, type, positions, ctx),
                        .query = make_tensor({heads, dim}, type, query, ctx),
                        .keys = k.narrow(0, rows - 3, 3),
                        .values = v.narrow(0, rows - 3, 3),
                        .weights = ctx.empty({3, heads, size}),
                        .rows = {{.first = 3, .count = static_cast<std::int32_t>(2 * size), .out = 1}}},
                       ctx);
  const Values got_k = read_values(k, ctx), got_v = read_values(v, ctx);
  for (std::int64_t j = 0; j < 2; ++j)
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto at = [&](std::int64_t row) { return static_cast<std::size_t>(row * width + h * dim); };
      std::int64_t picked = 3 + j * size + 5;
      for (std::int64_t n = 3 + j * size; h == 1 && n < 3 + (j + 1) * size; ++n)
        if (n == 3 + j * size || from_v[at(n)] > from_v[at(picked)]) picked = n;
      for (std::size_t i = 0; i < static_cast<std::size_t>(dim); ++i) {
        EXPECT_NEAR(got_k[at(rows - 2 + j) + i], from_k[at(picked) + i], 1e-4) << j << " " << h << " " << i;
        EXPECT_NEAR(got_v[at(rows - 2 + j) + i], from_v[at(picked) + i], 1e-4) << j << " " << h << " " << i;
      }
    }
}

TEST_P(PooledAttention, RefusesWeightsOfOtherPools) {
  const ExecContext ctx = context();
  const Tensor t = ctx.zeros({40, 1, 8}), lse = ctx.empty({1, 40});
  Attention a{.q = t, .k = t, .v = t, .out = ctx.empty(t.shape()), .lse = lse};
  a.queries = a.keys = spans_of({0, 40});
  a.pattern = pooled(window(4), {4, 16});
  const PoolWeights four{ctx.zeros({1, 4}), ctx.zeros({1, 8})};
  EXPECT_THROW(pooled_attention({a, {{four}}}, ctx), Error);
  EXPECT_THROW(pooled_attention({a, {{four, four}}}, ctx), Error);
  EXPECT_THROW(pool_weights(ctx.zeros({30}), a.pattern, 1, 8), Error);
  WeightedPool pool{.k = t, .v = t, .x = t, .positions = four.positions, .query = four.query};
  pool.keys = ctx.empty({10, 1, 8}), pool.values = ctx.empty({10, 1, 8});
  pool.weights = ctx.empty({10, 1, 4});
  pool.rows = {{.first = 0, .count = 40}};
  EXPECT_NO_THROW(weighted_pool_kernel(pool, ctx));
  for (const PoolSegment& wrong : {PoolSegment{.count = 42}, PoolSegment{.first = 4, .count = 40},
                                   PoolSegment{.count = 40, .out = 1}, PoolSegment{.count = 40, .leading_gap = 1}}) {
    pool.rows = {wrong};
    EXPECT_THROW(weighted_pool_kernel(pool, ctx), Error);
  }
}

// Each pool counts as a key: with equal keys all tokens and pools have equal weight, and the log-sum-exp counts them.
TEST_P(PooledAttention, CountsTokensAndPools) {
  const std::int64_t tokens = 100;
  PooledInputs in = inputs_of(tokens);
  std::ranges::fill(in.k, 0.0);
  const PooledResults got =
      run(pooled(window(4), {8, 32}), spans_of({0, 100}), tokens, in, GetParam().dtype, context());
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto keys = static_cast<double>(std::min<std::int64_t>(t + 1, 4) + t / 8 + t / 32);
    EXPECT_NEAR(got.lse[static_cast<std::size_t>(t)], std::log(keys), 1e-5) << t;
  }
}

TEST_P(PooledAttention, RefusesWhatItHasNot) {
  const ExecContext ctx = context();
  const Tensor t = ctx.zeros({40, 1, 8}), lse = ctx.empty({1, 40});
  Attention a{.q = t, .k = t, .v = t, .out = ctx.empty(t.shape()), .lse = lse};
  a.queries = a.keys = spans_of({0, 40});
  a.pattern = pooled(window(4), {16});
  EXPECT_THROW(attention_kernel(a, ctx), Error) << "pools have calls of their own";
  Attention dropped = a;
  dropped.dropout.rate = 0.1f;
  EXPECT_THROW(pooled_attention({dropped}, ctx), Error);
  Attention part = a;
  part.queries = part.keys = {{0, 40, 5, 0}};
  EXPECT_THROW(pooled_attention({part}, ctx), Error);
  Attention full = a;
  full.pattern = pooled(window(4, 0, false), {16});
  EXPECT_THROW(pooled_attention({full}, ctx), Error);
  a.pattern.pools = {1};
  EXPECT_THROW(pooled_attention({a}, ctx), Error);
}

// Blocks of rows may be partial, and rows strided; dx keeps its previous values.
TEST_P(PooledAttention, GradientsOfMeansGoToTheirTokens) {
  if (GetParam().dtype != DType::f32) GTEST_SKIP() << "of f32";
  const ExecContext ctx = context();
  const std::int64_t heads = 3, dim = 40, rows = 90;
  const std::vector<PoolSegment> pooled = {{.first = 4, .count = 30, .leading_gap = 5, .out = 2},
                                           {.first = 50, .count = 32}};
  const Values dout = random_values("dout", 5 * heads * dim), start = random_values("dx", rows * 2 * heads * dim);
  const Tensor all = make_tensor({rows, 2 * heads, dim}, DType::f32, start, ctx);
  block_pool_backward_kernel({make_tensor({5, heads, dim}, DType::f32, dout, ctx), all.narrow(1, 1, heads), pooled, 16},
                             ctx);
  Values want = start;
  const auto add = [&](std::int64_t first, std::int64_t end, std::int64_t block) {
    for (std::int64_t n = first; n < end; ++n)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t i = 0; i < dim; ++i)
          want[static_cast<std::size_t>((n * 2 * heads + h + 1) * dim + i)] +=
              dout[static_cast<std::size_t>((block * heads + h) * dim + i)] / static_cast<double>(end - first);
  };
  add(4, 15, 2), add(15, 31, 3), add(31, 34, 4), add(50, 66, 0), add(66, 82, 1);
  const Values got = read_values(all, ctx);
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6) << i;
}

// Means have the type of the rows and are written to other rows of the same tensor, as in a cache.
TEST_P(PooledAttention, MeansMayLieBesideTheirRows) {
  const ExecContext ctx = context();
  const std::int64_t rows = 70, width = 2 * 24;
  const Values x = random_values("x", rows * width);
  const Tensor t = make_tensor({rows, 2, 24}, GetParam().dtype, x, ctx);
  const Values held = read_values(t, ctx);
  block_pool_kernel({t, t, {{.first = 3, .count = 48, .out = 60}}, 16}, ctx);
  const Values got = read_values(t, ctx);
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t i = 0; i < width; ++i) {
      double want = held[static_cast<std::size_t>(n * width + i)];
      if (n >= 60 && n < 63) {
        want = 0;
        for (std::int64_t r = 0; r < 16; ++r)
          want += held[static_cast<std::size_t>((3 + (n - 60) * 16 + r) * width + i)] / 16;
      }
      const double rounding = GetParam().dtype == DType::bf16 ? 4e-3 : 1e-6;
      ASSERT_NEAR(got[static_cast<std::size_t>(n * width + i)], want, rounding * (1 + std::abs(want))) << n;
    }
}

template <class Args>
std::size_t visited_tensors(Args args) {
  std::set<const Tensor*> seen;
  visit_all<Tensor>(args, [&](Tensor& t) { EXPECT_TRUE(seen.insert(&t).second) << "visited twice"; });
  return seen.size();
}

TEST(PooledAttentionTensors, AreVisitedOnceEach) {
  // q to lse and carry; dropout and selection; two tensors per pool size of the weights; scored and gates.
  EXPECT_EQ(visited_tensors(ring::PooledAttention{{}, {std::vector<PoolWeights>(2)}}), 6u + 3 + 2 * 2 + 3);
  // q to dv and carries; dropout and selection; weights and their gradients; gates and their gradients.
  EXPECT_EQ(visited_tensors(PooledAttentionBackward{{}, {std::vector<PoolWeights>(1), std::vector<PoolWeights>(2)}}),
            12u + 3 + 2 * 3 + 2);
}

}  // namespace
}  // namespace ring::test
