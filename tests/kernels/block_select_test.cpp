// Selections by content, on CPUs and GPUs: against the definition in fp64 if scores differ by more than rounding. Ties,
// NaN, required blocks and causality must be exact.

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention/pools/block_pool.h"
#include "kernels/attention/selected/block_select.h"
#include "kernels/attention/selection.h"
#include "tests/cases/attention_oracle.h"
#include "tests/kept_blocks.h"
#include "tests/kernels/target.h"

namespace ring::test {
namespace {

class BlockSelections : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Cpu, BlockSelections, testing::Values(Target{}));
INSTANTIATE_TEST_SUITE_P(Gpu, BlockSelections,
                         testing::Values(Target{Backend::cuda, DType::f32}, Target{Backend::cuda, DType::bf16}));

BlockRule content_rule(std::int32_t keep, std::int32_t local = 1, std::int32_t first = 0, float mass = 1) {
  return {.kind = BlockRuleKind::content, .local = local, .first = first, .keep = keep, .mass = mass};
}

// Queries and keys, and the selection made from them.
struct SelectionProblem {
  AttentionShape shape;
  Values q, k;

  SelectionProblem(AttentionShape s, DType type) : shape(std::move(s)) {
    q = random_values("q", shape.tokens() * shape.heads * shape.dim);
    k = random_values("k", shape.tokens() * shape.kv_heads * shape.dim);
    if (type == DType::bf16)
      for (Values* v : {&q, &k})
        for (double& x : *v) x = to_float(to_bf16(static_cast<float>(x)));
  }
  std::vector<Span> spans() const { return spans_of(shape.offsets, shape.rows); }
};

struct Selected {
  std::vector<std::int32_t> bits;
  std::int64_t heads, words;
  bool keeps(std::int64_t row, std::int64_t head, std::int64_t k) const {
    const auto word = static_cast<std::uint32_t>(bits[static_cast<std::size_t>((row * heads + head) * words + k / 32)]);
    return (word >> (k % 32) & 1u) != 0;
  }
};
Selected select(const SelectionProblem& p, DType type, const ExecContext& ctx) {
  const Tensor q = make_tensor({p.shape.tokens(), p.shape.heads, p.shape.dim}, type, p.q, ctx);
  const Tensor k = make_tensor({p.shape.tokens(), p.shape.kv_heads, p.shape.dim}, type, p.k, ctx);
  const BlockSelection s = select_blocks(p.shape.pattern, q, k, static_cast<float>(p.shape.scale), p.spans(), ctx);
  const std::int64_t words = max_blocks(p.shape.pattern, p.spans()) / 32 + 1;
  return {bits_of_kept(s.kept, words, ctx), s.kept.dim(1), words};
}

// One document of a problem: rows [first, end), blocks counted from row `origin`.
struct Document {
  std::int64_t origin, first, end, row;  // row: first row in the selection
  int blocks;
};
std::vector<Document> documents_of(const SelectionProblem& p) {
  const std::vector<Span> spans = p.spans();
  const std::vector<std::int32_t> rows = first_blocks(p.shape.pattern, spans);
  const std::int32_t size = p.shape.pattern.blocks->block();
  std::vector<Document> all;
  for (std::size_t b = 0; b < spans.size(); ++b)
    all.push_back({spans[b].first - spans[b].document % size, spans[b].first, spans[b].first + spans[b].count, rows[b],
                   rows[b + 1] - rows[b]});
  return all;
}

// A block that differs from the definition's choice must have an equal score, up to rounding. The number of blocks may
// differ if a share reaches the mass up to rounding.
void expect_selected(const SelectionProblem& p, const Selected& got) {
  constexpr double kRounding = 1e-5;  // of shares
  int chosen = 0;
  for (const Document& d : documents_of(p))
    for (std::int64_t head = 0; head < p.shape.kv_heads; ++head)
      for (int i = 0; i < d.blocks; ++i) {
        const std::vector<bool> want = kept_blocks(p.shape, p.q, p.k, head, d.origin, d.first, d.end, i);
        double worst_kept = INFINITY, best_left = -INFINITY;
        int kept = 0, wanted = 0;
        for (int j = 0; j <= i; ++j) {
          const bool has = got.keeps(d.row + i, head, j), should = want[static_cast<std::size_t>(j)];
          kept += has, wanted += should;
          if (has == should) continue;
          const double score = block_score(p.shape, p.q, p.k, head, d.origin, d.first, d.end, i, j);
          (has ? worst_kept : best_left) = has ? std::min(worst_kept, score) : std::max(best_left, score);
        }
        const auto count = [&](double slack) {
          const auto blocks = kept_blocks(p.shape, p.q, p.k, head, d.origin, d.first, d.end, i, slack);
          return std::ranges::count(blocks, true);
        };
        if (p.shape.pattern.blocks->rule(static_cast<std::int32_t>(head)).mass < 1) {
          EXPECT_GE(kept, count(-kRounding)) << "block " << i << " of head " << head;
          EXPECT_LE(kept, count(kRounding)) << "block " << i << " of head " << head;
        } else {
          EXPECT_EQ(kept, wanted) << "block " << i << " of head " << head;
        }
        EXPECT_TRUE(kept == 0 || worst_kept == INFINITY || worst_kept >= best_left - 1e-6) << worst_kept << best_left;
        for (std::int64_t j = i + 1; j < got.words * 32; ++j) EXPECT_FALSE(got.keeps(d.row + i, head, j)) << j;
        chosen += kept < i + 1;
      }
  EXPECT_GT(chosen, 0) << "nothing was left out";
}

TEST_P(BlockSelections, AreThoseOfTheDefinition) {
  const std::vector<std::int32_t> packed = offsets_of({900, 70, 1, 1300, 640}, 0), rows = {0, 971};
  const BlockRule closed{.local = 2, .every = 3};
  for (const auto& [block, rules] : {std::pair<std::int32_t, std::vector<BlockRule>>{64, {content_rule(2)}},
                                     {64, {content_rule(5, 2, 1), closed}},
                                     {128, {content_rule(3, 1, 1), content_rule(2)}}})
    for (const std::int64_t dim : {8, 33, 128, 192, 200})
      for (const std::int64_t group : {1, 3}) {
        SCOPED_TRACE(str("blocks of ", block, ", D ", dim, ", ", group, " heads per KV head"));
        const SelectionProblem p({packed, 2 * group, 2, dim, 1, block_sparse(block, rules), rows}, GetParam().dtype);
        expect_selected(p, select(p, GetParam().dtype, context()));
      }
}

// More blocks than a word, a warp and a thread block hold.
TEST_P(BlockSelections, OfLongRows) {
  for (const std::int64_t dim : {8, 64, 128, 256}) {
    const SelectionProblem p({{0, 64 * 300 + 17}, 1, 1, dim, 1, block_sparse(64, {content_rule(40, 2, 1)})},
                             GetParam().dtype);
    expect_selected(p, select(p, GetParam().dtype, context()));
  }
}

// More heads than a launch takes on GPUs.
TEST_P(BlockSelections, OfManyHeads) {
  const Pattern pattern = block_sparse(64, {content_rule(5, 2, 1), {.local = 2, .every = 3}});
  const SelectionProblem p({{0, 64 * 10 + 5}, 66, 66, 8, 1, pattern}, GetParam().dtype);
  expect_selected(p, select(p, GetParam().dtype, context()));
}

// Scores separate blocks clearly: some rows reach the mass before `keep` blocks, others are limited by `keep`.
TEST_P(BlockSelections, UntilTheMassIsReached) {
  const std::vector<std::int32_t> packed = offsets_of({900, 70, 1, 1300, 640}, 0), rows = {0, 971};
  for (const float mass : {0.3f, 0.9f})
    for (const std::int64_t group : {1, 3}) {
      SCOPED_TRACE(str("mass ", mass, ", ", group, " heads per KV head"));
      const Pattern pattern = block_sparse(64, {content_rule(8, 2, 1, mass), content_rule(9)});
      const SelectionProblem p({packed, 2 * group, 2, 40, 60, pattern, rows}, GetParam().dtype);
      const Selected got = select(p, GetParam().dtype, context());
      expect_selected(p, got);
      int full = 0, fewer = 0;
      for (const Document& d : documents_of(p))
        for (int i = 8; i < d.blocks; ++i) {
          int kept = 0;
          for (int j = 0; j <= i; ++j) kept += got.keeps(d.row + i, 0, j);
          (kept < 8 ? fewer : full) += 1;
        }
      EXPECT_GT(fewer, 0);
      EXPECT_TRUE(full > 0 || mass < 0.5f);
    }
}

TEST_P(BlockSelections, UntilTheMassOfLongRowsIsReached) {
  const SelectionProblem p({{0, 64 * 300 + 17}, 1, 1, 8, 200, block_sparse(64, {content_rule(60, 2, 1, 0.8f)})},
                           GetParam().dtype);
  expect_selected(p, select(p, GetParam().dtype, context()));
}

// Returns the blocks that a block keeps whose candidates, all blocks before it, have these scores.
std::vector<int> chosen(const Values& scores, float mass, std::int32_t keep, const ExecContext& ctx, float scale = 1) {
  const auto own = static_cast<std::int32_t>(scores.size());
  Values row = scores;
  row.push_back(1e6);  // the block itself, which is always kept
  const Tensor kept_blocks = ctx.empty({1, 1, std::min(keep, own + 1)}, DType::i32);
  block_select_kernel({.queries = {},
                       .keys = {},
                       .kept = kept_blocks,
                       .documents = {{0, 0, -own, own, own + 1}},
                       .blocks = block_sparse(64, {content_rule(keep, 1, 0, mass)}).blocks,
                       .scores = make_tensor({1, 1, own + 1}, DType::f32, row, ctx),
                       .scale = scale},
                      ctx);
  const Selected got{bits_of_kept(kept_blocks, own / 32 + 1, ctx), 1, own / 32 + 1};
  std::vector<int> kept;
  for (std::int32_t j = 0; j < got.words * 32; ++j)
    if (got.keeps(0, 0, j) && j != own) kept.push_back(j);
  EXPECT_TRUE(got.keeps(0, 0, own));
  return kept;
}

// The shares are 1/8, 1/2, 1/4 and 1/8.
TEST_P(BlockSelections, CountSharesOfTheSoftmax) {
  const ExecContext ctx = context();
  using Kept = std::vector<int>;
  const Values scores = {-3 * std::log(2), -std::log(2), -2 * std::log(2), -3 * std::log(2)};
  for (const auto& [mass, want] : std::vector<std::pair<float, Kept>>{{1e-30f, {1}},
                                                                      {0.49f, {1}},
                                                                      {0.51f, {1, 2}},
                                                                      {0.74f, {1, 2}},
                                                                      {0.76f, {0, 1, 2}},
                                                                      {0.87f, {0, 1, 2}},
                                                                      {0.88f, {0, 1, 2, 3}},
                                                                      {1, {0, 1, 2, 3}}})
    EXPECT_EQ(chosen(scores, mass, 10, ctx), want) << mass;
  EXPECT_EQ(chosen(scores, 0.99f, 3, ctx), (Kept{1, 2})) << "itself is one of keep: 3";
  EXPECT_EQ(chosen(scores, 0.3f, 3, ctx), (Kept{1}));
  Values halved = scores;
  for (double& s : halved) s = s / 2 + 7;
  EXPECT_EQ(chosen(halved, 0.49f, 10, ctx, 2), (Kept{1}));
  EXPECT_EQ(chosen(halved, 0.51f, 10, ctx, 2), (Kept{1, 2}));
  EXPECT_EQ(chosen(halved, 0.49f, 10, ctx, 1), (Kept{1, 2})) << "without the factor shares are more equal";
}

TEST_P(BlockSelections, CountNoNanInTheMass) {
  const ExecContext ctx = context();
  using Kept = std::vector<int>;
  const double half = -std::log(2), quarter = 2 * half, inf = INFINITY;
  EXPECT_EQ(chosen({NAN, half, NAN, quarter, quarter}, 0.6f, 10, ctx), (Kept{1, 3}));
  EXPECT_EQ(chosen({NAN, half, NAN, quarter, quarter}, 0.99f, 10, ctx), (Kept{1, 3, 4}));
  EXPECT_EQ(chosen({NAN, NAN, NAN}, 0.5f, 10, ctx), Kept{});
  EXPECT_EQ(chosen({inf, 1, inf, NAN, 2}, 0.4f, 10, ctx), (Kept{0}));
  EXPECT_EQ(chosen({inf, 1, inf, NAN, 2}, 0.9f, 10, ctx), (Kept{0, 2}));
  EXPECT_EQ(chosen({-inf, 3, -inf, 2}, 0.9f, 10, ctx), (Kept{1, 3}));
  EXPECT_EQ(chosen({-inf, NAN, -inf, -inf}, 0.5f, 10, ctx), (Kept{0, 2}));
  EXPECT_EQ(chosen({3e38, -3e38, 2e38}, 0.99f, 10, ctx), (Kept{0}));
}

// Equal scores have exactly equal shares; lower blocks come first.
TEST_P(BlockSelections, TakeTheLowerOfEqualBlocksForTheMass) {
  const ExecContext ctx = context();
  const auto first = [](int count) {
    std::vector<int> all;
    for (int j = 0; j < count; ++j) all.push_back(j);
    return all;
  };
  EXPECT_EQ(chosen(Values(80, 2.5), 0.25f, 100, ctx), first(20));
  EXPECT_EQ(chosen(Values(80, 2.5), 0.25f, 11, ctx), first(10));
  for (const std::size_t count : {7000, 13000})  // on GPUs, one warp per thread block, and more than 48 KiB
    EXPECT_EQ(chosen(Values(count, 2.5), 1, 11, ctx), first(10)) << count;
  Values one_better(65, -1.0);
  one_better[40] = 1e3;
  EXPECT_EQ(chosen(one_better, 0.5f, 100, ctx), (std::vector{40}));
}

// Blocks with equal keys have equal scores.
TEST_P(BlockSelections, TakeTheLowerOfEqualBlocks) {
  SelectionProblem p({{0, 64 * 12}, 2, 1, 16, 1, block_sparse(64, {content_rule(4)})}, GetParam().dtype);
  const std::size_t row = 16;
  for (std::size_t i = 0; i < p.k.size(); ++i) p.k[i] = p.k[i % row];
  const Selected got = select(p, GetParam().dtype, context());
  for (int i = 4; i < 12; ++i)
    for (int j = 0; j <= i; ++j) EXPECT_EQ(got.keeps(i, 0, j), j < 3 || j == i) << i << ", " << j;
}

// A block with a NaN is never selected; a block with an infinite score is the best.
TEST_P(BlockSelections, NeverTakeNan) {
  SelectionProblem p({{0, 64 * 8}, 1, 1, 8, 1, block_sparse(64, {content_rule(3)})}, GetParam().dtype);
  std::fill(p.q.begin(), p.q.end(), 1);
  std::fill(p.k.begin(), p.k.end(), -1);
  const auto set = [&](int block, double value) { p.k[static_cast<std::size_t>(block) * 64 * 8 + 9] = value; };
  set(0, NAN), set(1, INFINITY), set(3, NAN), set(5, -INFINITY);
  const Selected got = select(p, GetParam().dtype, context());
  const std::vector<std::vector<int>> want = {{0}, {1}, {1, 2}, {1, 2, 3}, {1, 2, 4}, {1, 2, 5}, {1, 2, 6}, {1, 2, 7}};
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j <= i; ++j)
      EXPECT_EQ(got.keeps(i, 0, j), std::ranges::count(want[static_cast<std::size_t>(i)], j) > 0) << i << ", " << j;
}

// A changed row affects only selections of later blocks.
TEST_P(BlockSelections, DoNotLookAhead) {
  const ExecContext ctx = context();
  for (const BlockRule& rule : {content_rule(3, 1, 1), content_rule(6, 1, 1, 0.6f)}) {
    const SelectionProblem p({{0, 64 * 9 + 5}, 2, 1, 8, 20, block_sparse(64, {rule})}, GetParam().dtype);
    const Selected before = select(p, GetParam().dtype, ctx);
    int changes = 0;
    for (const std::size_t row : {0, 63, 64, 200, 383, 384, 511}) {
      SelectionProblem changed = p;
      for (std::size_t i = 0; i < 16; ++i) changed.q[row * 16 + i] = i % 2 ? 60 : -70;
      for (std::size_t i = 0; i < 8; ++i) changed.k[row * 8 + i] = i % 2 ? 50 : -40;
      const Selected after = select(changed, GetParam().dtype, ctx);
      const auto same_until = static_cast<std::ptrdiff_t>(row / 64 + 1) * before.words;
      EXPECT_TRUE(std::equal(before.bits.begin(), before.bits.begin() + same_until, after.bits.begin())) << row;
      changes += before.bits != after.bits;
    }
    EXPECT_GT(changes, 4);
  }
}

// Some blocks of a document, as in generation, select the same as in the whole document.
TEST_P(BlockSelections, OfSomeBlocksAreThoseOfAll) {
  const ExecContext ctx = context();
  const auto blocks = block_sparse(64, {content_rule(8, 2, 1, 0.4f), {.local = 3}}).blocks;
  const Tensor queries = make_tensor({20, 2, 24}, DType::f32, random_values("queries", 20 * 48), ctx);
  const Tensor keys = make_tensor({20, 2, 24}, DType::f32, random_values("keys", 20 * 48), ctx);
  const Tensor all = ctx.empty({20, 2, 8}, DType::i32), some = ctx.empty({2, 2, 8}, DType::i32);
  block_select_kernel({queries, keys, all, {{0, 0, 0, 0, 20}}, blocks}, ctx);
  block_select_kernel({queries.narrow(0, 10, 1), keys, some, {{-10, 0, -10, 11, 12}}, blocks}, ctx);
  const auto a = to_host<std::int32_t>(all.narrow(0, 11, 1), ctx.stream);
  EXPECT_EQ(a, to_host<std::int32_t>(some.narrow(0, 1, 1), ctx.stream));
}

TEST(BlockSelect, WrongShapesAreRefused) {
  const ExecContext ctx{Stream::cpu(1)};
  const auto blocks = block_sparse(64, {content_rule(4)}).blocks;
  const Tensor means = ctx.zeros({8, 1, 8}), kept = ctx.zeros({8, 1, 4}, DType::i32), x = ctx.zeros({512, 1, 8});
  EXPECT_NO_THROW(block_select_kernel({means, means, kept, {{0, 0, 0, 0, 8}}, blocks}, ctx));
  for (const SelectedRows& d :
       {SelectedRows{0, 0, 0, 0, 9}, SelectedRows{0, 0, 1, 0, 8}, SelectedRows{0, 2, 0, 0, 8},
        SelectedRows{-1, 0, 0, 1, 8}, SelectedRows{0, 0, 0, 5, 4}, SelectedRows{0, 0, 0, -1, 4}})
    EXPECT_THROW(block_select_kernel({means, means, kept, {d}, blocks}, ctx), Error) << d.queries << d.keys << d.kept;
  const Tensor short_lists = ctx.zeros({8, 1, 3}, DType::i32), scores = ctx.zeros({8, 1, 8});
  EXPECT_THROW(block_select_kernel({means, means, short_lists, {{0, 0, 0, 0, 8}}, blocks}, ctx), Error);
  EXPECT_NO_THROW(block_select_kernel({means, means, short_lists, {{0, 0, 0, 0, 3}}, blocks}, ctx));
  EXPECT_NO_THROW(block_select_kernel({{}, {}, kept, {}, blocks, scores, 1, ctx.zeros({8, 1, 4})}, ctx));
  EXPECT_THROW(block_select_kernel({{}, {}, kept, {}, blocks, scores, 1, scores}, ctx), Error);
  EXPECT_THROW(block_select_kernel({means, means, kept, {}, blocks, {}, 1, ctx.zeros({8, 1, 4})}, ctx), Error);
  EXPECT_THROW(block_select_kernel({means, ctx.zeros({8, 2, 8}), kept, {}, blocks}, ctx), Error);
  EXPECT_NO_THROW(block_pool_kernel({x, means, {{0, 512, 0, 0}}, 64}, ctx));
  for (const PoolSegment& r :
       {PoolSegment{0, 513, 0, 0}, PoolSegment{0, 512, 1, 0}, PoolSegment{0, 512, 0, 1}, PoolSegment{0, 10, 64, 0}})
    EXPECT_THROW(block_pool_kernel({x, means, {r}, 64}, ctx), Error) << r.count << r.leading_gap << r.out;
  EXPECT_THROW(BlockPattern(64, {content_rule(2, 2, 1)}), Error);
  for (const float mass : {0.0f, -1.0f, 1.5f, NAN})
    EXPECT_THROW(BlockPattern(64, {content_rule(4, 2, 1, mass)}), Error);
  EXPECT_THROW(block_select_kernel({means, means, kept, {}, blocks, {}, 0}, ctx), Error);
}

// Attention by content fails with a message if it is called without a selection, or with one of a wrong size.
TEST(BlockSelect, IsNeeded) {
  const ExecContext ctx{Stream::cpu(1)};
  const Tensor x = ctx.zeros({130, 1, 8}), lse = ctx.zeros({1, 130});
  Attention a{.q = x, .k = x, .v = x, .out = ctx.zeros(x.shape()), .lse = lse, .queries = {{0, 130, 0, 0}}};
  a.keys = a.queries;
  a.pattern = block_sparse(64, {content_rule(2)});
  EXPECT_THROW(attention_kernel(a, ctx), Error);
  a.selection = select_blocks(a.pattern, x, x, a.scale, a.queries, ctx);
  EXPECT_NO_THROW(attention_kernel(a, ctx));
  Attention cut = a;
  cut.keys[0].count = 70;
  EXPECT_THROW(attention_kernel(cut, ctx), Error);
  a.selection.kept = ctx.zeros({2, 1, 1}, DType::i32);
  EXPECT_THROW(attention_kernel(a, ctx), Error);
  a.pattern = dense();
  EXPECT_THROW(attention_kernel(a, ctx), Error);
}

}  // namespace
}  // namespace ring::test
