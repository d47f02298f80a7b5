// The share that a pattern of blocks keeps, as logged by watched steps: pairs, and mass of dense attention, against
// their definitions in fp64.

#include "kernels/attention/selected/attention_recall.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "autograd/ops.h"
#include "kernels/attention/selected/block_select.h"
#include "tests/kept_blocks.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/print_backend.h"

namespace ring::test {
namespace {

class KeptShares : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!backend_available(GetParam())) GTEST_SKIP() << "no device";
  }
  ExecContext context() const {
    return GetParam() == Backend::cpu ? poisoned_context(3) : poisoned_device_context({GetParam(), 0});
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, KeptShares, testing::Values(Backend::cpu));
INSTANTIATE_TEST_SUITE_P(Gpu, KeptShares, testing::Values(Backend::cuda));

TEST_P(KeptShares, OfRowsThatSeeSomething) {
  const ExecContext ctx = context();
  const Tensor kept = make_tensor({2, 3}, DType::f32, {-1, 3, 7, 0, -2, 5}, ctx);
  const Tensor dense = make_tensor({2, 3}, DType::f32, {0, 3, -INFINITY, 2, -INFINITY, 5.5}, ctx);
  const Tensor out = ctx.empty({3, 4});
  attention_recall_kernel({kept, dense, out}, ctx);
  const Values got = read_values(out, ctx),
               want = {std::exp(-1), std::exp(-2), 1, 1, 1, 0, 1, 0, 0, std::exp(-.5), 0, 1};
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << i;
}

// Spans of queries, and the indices of their documents.
struct SomeQueries {
  std::vector<Span> queries;
  std::vector<std::size_t> of;
};

class KeptPairs : public KeptShares {
 protected:
  // Compares the output of a call for some queries with pairs that are counted one by one.
  void expect_counted(const AttentionProblem& p, const SomeQueries& some, bool whole) const {
    const ExecContext ctx = context();
    const std::vector<std::int32_t> first = first_blocks(p.pattern, p.queries);
    const std::int32_t block = p.pattern.blocks->block();
    const Tensor kept = kept_of_bits(p.selection, p.kv_heads, p.words(), ctx);
    SelectedPairs args{{kept}, ctx.zeros({first.back(), 2}), some.queries, {}, p.pattern};
    for (const std::size_t b : some.of) {
      args.keys.push_back(p.queries[b]);
      if (!whole) args.selection.rows.push_back(first[b]);
    }
    selected_pairs_kernel(args, ctx);
    Values want(static_cast<std::size_t>(first.back()) * 2);
    for (std::size_t i = 0; i < some.of.size(); ++i) {
      const std::size_t b = some.of[i];
      const Span& document = p.queries[b];
      const std::int32_t begin = some.queries[i].position - document.position, end = begin + some.queries[i].count;
      for (std::int32_t t = begin; t < end; ++t)
        for (std::int32_t u = 0; u <= t; ++u)
          for (std::int64_t h = 0; h < p.kv_heads; ++h) {
            double* const row = &want[static_cast<std::size_t>(first[b] + (t + document.document % block) / block) * 2];
            row[0] += p.selects(b, h, t, u), ++row[1];
          }
    }
    EXPECT_EQ(read_values(args.out, ctx), want) << "blocks of " << block;
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, KeptPairs, testing::Values(Backend::cpu));
INSTANTIATE_TEST_SUITE_P(Gpu, KeptPairs, testing::Values(Backend::cuda));

TEST_P(KeptPairs, AreCountedOneByOne) {
  for (const std::int32_t block : {64, 128}) {
    const AttentionProblem p =
        with_selection(problem_of(content(block, 9), offsets_of({300, 1, 70, 129, 2500}, 3), {3, 304}, 5));
    expect_counted(p, {p.queries, {0, 1, 2, 3, 4}}, true);
    // Parts begin and end within blocks; their rows are rows of a different tensor.
    const auto part = [&](std::size_t b, std::int32_t begin, std::int32_t count, std::int32_t row) {
      return Span{row, count, p.queries[b].position + begin, p.queries[b].document};
    };
    expect_counted(p, {{part(4, 700, 1, 0)}, {4}}, false);
    expect_counted(p, {{part(0, 10, 290, 7), part(4, 0, 130, 400), part(1, 0, 1, 2)}, {0, 4, 1}}, false);
    expect_counted(p, {{part(4, 1290, 1210, 0), part(3, 65, 40, 1300)}, {4, 3}}, false);
  }
}

TEST(AttentionRecall, SamplesAreBlocksOfEveryDocument) {
  const std::vector<Span> spans = spans_of(offsets_of({300, 1, 70, 640}, 3), {3, 304});
  const Pattern pattern = content(64, 3);
  const std::vector<QuerySample> all = sample_blocks(pattern, spans, 100);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].queries, spans);
  EXPECT_EQ(all[0].keys, spans);
  for (const std::int64_t most : {1, 4, 7, 11}) {
    std::int64_t blocks = 0;
    std::set<std::int32_t> rows;
    for (const QuerySample& some : sample_blocks(pattern, spans, most)) {
      ASSERT_EQ(some.queries.size(), some.keys.size());
      for (std::size_t i = 0; i < some.queries.size(); ++i) {
        const Span &q = some.queries[i], &k = some.keys[i];
        EXPECT_EQ(std::ranges::count(spans, k), 1);
        EXPECT_EQ(std::ranges::count(some.keys, k), 1) << "attention takes a key once";
        EXPECT_TRUE(q.first >= k.first && q.first + q.count <= k.first + k.count && q.count > 0);
        EXPECT_EQ(q.first - k.first, q.position - k.position);
        EXPECT_EQ(q.document, k.document);
        const std::int32_t from = q.position - q.document / 64 * 64, end = from + q.count;
        EXPECT_TRUE(q.first == k.first || from % 64 == 0) << from;
        EXPECT_TRUE(q.first + q.count == k.first + k.count || end % 64 == 0) << end;
        blocks += (end + 63) / 64 - from / 64;
        for (std::int32_t n = q.first; n < q.first + q.count; ++n) EXPECT_TRUE(rows.insert(n).second) << n;
      }
    }
    EXPECT_EQ(blocks, most);
    EXPECT_TRUE(rows.contains(spans.back().first + spans.back().count - 1));
  }
  EXPECT_TRUE(sample_blocks(pattern, {}, 4).empty());
}

struct Watched {
  double density, recall;
};

// Returns the shares as defined: kept pairs over causal pairs; and the mean over rows and heads of the weight that
// dense attention gives to the keys for which `keeps` is true.
template <class Keeps>
Watched definition(const AttentionShape& a, const Values& q, const Values& k, const Keeps& keeps) {
  double kept_pairs = 0, pairs = 0, share = 0, rows = 0;
  for (std::size_t b = 0; b + 1 < a.offsets.size(); ++b)
    for (std::int32_t t = a.offsets[b]; t < a.offsets[b + 1]; ++t)
      for (std::int64_t h = 0; h < a.heads; ++h) {
        const std::int64_t kv = h * a.kv_heads / a.heads;
        double kept = 0, all = 0;
        for (std::int32_t u = a.offsets[b]; u <= t; ++u) {
          double s = 0;
          for (std::int64_t i = 0; i < a.dim; ++i)
            s += a.scale * q[static_cast<std::size_t>((t * a.heads + h) * a.dim + i)] *
                 k[static_cast<std::size_t>((u * a.kv_heads + kv) * a.dim + i)];
          const bool has = keeps(b, kv, t, u);
          all += std::exp(s), kept += has ? std::exp(s) : 0;
          kept_pairs += has, ++pairs;
        }
        share += kept / all, ++rows;
      }
  return {kept_pairs / pairs, share / rows};
}

// Returns the measurements of self_attention.
Values watch(const AttentionShape& a, const Values& q, const Values& k, DType type, const ExecContext& ctx) {
  const std::int64_t q_width = a.heads * a.dim, k_width = a.kv_heads * a.dim;
  Values qkv;
  for (std::int64_t t = 0; t < a.tokens(); ++t) {
    qkv.insert(qkv.end(), q.begin() + t * q_width, q.begin() + (t + 1) * q_width);
    for (int twice = 0; twice < 2; ++twice)
      qkv.insert(qkv.end(), k.begin() + t * k_width, k.begin() + (t + 1) * k_width);
  }
  std::vector<Tensor> told;
  ring::Run run{.ctx = ctx, .probes = {.entropies = &told}};
  SelfAttention options{.heads = a.heads, .kv_heads = a.kv_heads, .head_dim = a.dim};
  options.attention = {.scale = static_cast<float>(a.scale), .pattern = a.pattern};
  self_attention(run, {make_tensor({a.tokens(), q_width + 2 * k_width}, type, qkv, ctx), nullptr},
                 {.offsets = a.offsets, .rows = a.rows}, options);
  RING_CHECK(told.size() == 1, told.size(), " measurements of one attention");
  return read_values(told[0], ctx);
}

class WatchedBlocks : public KeptShares {
 protected:
  // The selection is made from q and k as by the kernel; rules by position are evaluated.
  void expect_right(const AttentionShape& a, DType type, double tolerance) const {
    const ExecContext ctx = context();
    const auto stored = [&](Values v) {
      for (double& x : v) {
        const auto f = static_cast<float>(x);
        x = type == DType::bf16 ? to_float(to_bf16(f)) : f;
      }
      return v;
    };
    const Values q = stored(random_values("q", a.tokens() * a.heads * a.dim)),
                 k = stored(random_values("k", a.tokens() * a.kv_heads * a.dim));
    const std::vector<Span> spans = spans_of(a.offsets, a.rows);
    AttentionProblem p = problem_of(a.pattern, a.offsets, a.rows);
    p.kv_heads = a.kv_heads;
    if (a.pattern.selects())
      p.selection = bits_of_kept(select_blocks(a.pattern, make_tensor({a.tokens(), a.heads, a.dim}, type, q, ctx),
                                               make_tensor({a.tokens(), a.kv_heads, a.dim}, type, k, ctx),
                                               static_cast<float>(a.scale), spans, ctx)
                                     .kept,
                                 p.words(), ctx);
    const Watched want = definition(a, q, k, [&](std::size_t b, std::int64_t kv, std::int32_t t, std::int32_t u) {
      const std::int32_t row = row_start(a, a.offsets[b]);
      return a.pattern.selects()
                 ? p.selects(b, kv, t - a.offsets[b], u - a.offsets[b])
                 : multiplicity(a.pattern, static_cast<std::int32_t>(kv), t - row, u - row, a.offsets[b] - row) > 0;
    });
    const Values got = watch(a, q, k, type, ctx);
    const auto heads = static_cast<std::size_t>(a.heads);
    ASSERT_EQ(got.size(), 4 * heads + 3);
    double shares = 0, rows = 0;
    for (std::size_t h = 2 * heads; h < 3 * heads; ++h) shares += got[h], rows += got[heads + h];
    EXPECT_EQ(rows, static_cast<double>(a.tokens() * a.heads));
    EXPECT_NEAR(shares / rows, want.recall, tolerance);
    EXPECT_NEAR(got[4 * heads] / got[4 * heads + 1], want.density, 1e-6);
    EXPECT_EQ(got[4 * heads + 2], 0) << "pools";
    EXPECT_LT(want.recall, 0.95);
    EXPECT_LT(want.density, 0.95);
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, WatchedBlocks, testing::Values(Backend::cpu));
INSTANTIATE_TEST_SUITE_P(Gpu, WatchedBlocks, testing::Values(Backend::cuda));

TEST_P(WatchedBlocks, TellWhatTheyKeepOfDenseAttention) {
  const BlockRule by_content{.kind = BlockRuleKind::content, .local = 1, .keep = 2}, closed{.local = 1, .first = 1};
  for (const auto& rules : {std::vector{by_content}, {by_content, closed}, {closed}})
    for (const auto& [lengths, rows] :
         {std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>>{{500}, {}}, {{300, 1, 260, 400}, {0, 301}}}) {
      SCOPED_TRACE(str(rules.size(), " rules, ", lengths.size(), " documents"));
      const AttentionShape a{offsets_of(lengths), 4, 2, 16, 0.4, block_sparse(64, rules), rows};
      expect_right(a, DType::f32, 1e-5);
      if (GetParam() == Backend::cuda) expect_right(a, DType::bf16, 1e-4);
    }
}

// Pools are pairs of their own and leave the other counts unchanged.
TEST_P(WatchedBlocks, CountPoolsApart) {
  const std::vector<std::int32_t> lengths{300, 1, 260};
  const AttentionShape without{offsets_of(lengths), 4, 2, 16, 0.4, block_sparse(64, {{.local = 1, .first = 1}})};
  AttentionShape with = without;
  with.pattern.pools = {16, 40};
  const Values q = random_values("q", with.tokens() * 64), k = random_values("k", with.tokens() * 32);
  Values want = watch(without, q, k, DType::f32, context());
  const Values got = watch(with, q, k, DType::f32, context());
  ASSERT_EQ(got.size(), want.size());
  double pools = 0;
  for (const std::int32_t length : lengths)
    for (std::int32_t t = 0; t < length; ++t) pools += 2 * (t / 16 + t / 40);  // over 2 KV heads
  EXPECT_EQ(got.back(), pools);
  for (std::size_t i = 8; i + 1 < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-3) << i;
}

// Other kinds of attention log no shares.
TEST(AttentionRecall, OnlyBlocksAreMeasured) {
  const AttentionShape a{offsets_of({40}), 2, 1, 8, 0.7, window(20)};
  EXPECT_EQ(watch(a, random_values("q", 40 * 16), random_values("k", 40 * 8), DType::f32, poisoned_context(1)).size(),
            4u);
}

// A long row is sampled: all pairs are counted, but dense attention is computed for 64 blocks of queries.
TEST(AttentionRecall, ALongRowIsSampled) {
  const std::int32_t tokens = 64 * 150;
  const AttentionShape a{{0, tokens}, 1, 1, 8, 0.5, block_sparse(64, {{.local = 2, .first = 1}})};
  const Values same(static_cast<std::size_t>(tokens * 8));  // queries of 0 attend equally to all keys
  const Values got = watch(a, same, random_values("k", tokens * 8), DType::f32, poisoned_context(3));
  ASSERT_EQ(got.size(), 7u);
  EXPECT_EQ(got[3], 64 * 64) << "rows";
  const double share = got[2] / got[3], density = got[4] / got[5];
  EXPECT_NEAR(density, attention_pairs(a) / (0.5 * tokens * (tokens + 1.0)), 1e-6);
  double want = 0;  // of its i + 1 blocks, block i sees the first, the previous and itself
  for (int i = 0; i < 150; ++i)
    for (int t = 64 * i; t < 64 * (i + 1) && (i + 1) * 64 / 150 > i * 64 / 150; ++t)
      want += std::min(1.0, (128.0 + t % 64 + 1) / (t + 1)) / (64 * 64);
  EXPECT_NEAR(share, want, 1e-5);
}

TEST(AttentionRecall, WrongShapesAreRefused) {
  const ExecContext ctx{Stream::cpu(1)};
  EXPECT_THROW(attention_recall_kernel({ctx.zeros({2, 3}), ctx.zeros({3, 2}), ctx.zeros({3, 4})}, ctx), Error);
  EXPECT_THROW(attention_recall_kernel({ctx.zeros({2, 3}), ctx.zeros({2, 3}), ctx.zeros({2, 4})}, ctx), Error);
  const Pattern pattern = content(64, 3);
  const BlockSelection kept{ctx.zeros({3, 1, 1}, DType::i32)};
  EXPECT_NO_THROW(selected_pairs_kernel({kept, ctx.zeros({3, 2}), {{0, 130, 0, 0}}, {{0, 130, 0, 0}}, pattern}, ctx));
  EXPECT_THROW(selected_pairs_kernel({kept, ctx.zeros({2, 2}), {{0, 130, 0, 0}}, {{0, 130, 0, 0}}, pattern}, ctx),
               Error);
  EXPECT_THROW(selected_pairs_kernel({kept, ctx.zeros({3, 2}), {{0, 200, 0, 0}}, {{0, 200, 0, 0}}, pattern}, ctx),
               Error);
  const BlockSelection part{kept.kept, {0}};
  EXPECT_NO_THROW(selected_pairs_kernel({part, ctx.zeros({3, 2}), {{0, 30, 100, 0}}, {{0, 130, 0, 0}}, pattern}, ctx));
  EXPECT_THROW(selected_pairs_kernel({part, ctx.zeros({3, 2}), {{0, 31, 100, 0}}, {{0, 130, 0, 0}}, pattern}, ctx),
               Error);
}

}  // namespace
}  // namespace ring::test
