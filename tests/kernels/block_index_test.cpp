// The block indexer on CPUs and GPUs, beyond its op cases: blocks that it must not see, and arguments that it refuses.

#include <gtest/gtest.h>

#include <climits>
#include <cmath>

#include "kernels/attention/blocks.h"
#include "kernels/attention/learned/block_index.h"
#include "tests/kept_blocks.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/print_backend.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

class BlockIndex : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!backend_available(GetParam())) GTEST_SKIP() << "no device";
  }
  ExecContext context() const {
    return GetParam() == Backend::cpu ? poisoned_context(3) : poisoned_device_context({GetParam(), 0});
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, BlockIndex, testing::Values(Backend::cpu));
INSTANTIATE_TEST_SUITE_P(Gpu, BlockIndex, testing::Values(Backend::cuda));

constexpr IndexShape kShape{.heads = 2, .dim = 8, .kv_heads = 3, .first_head = 1, .count = 2, .distances = 9};
constexpr int kBlocks = 40;
const BlockRule kContent{.kind = BlockRuleKind::content, .local = 2, .first = 1, .keep = 6};

Values projected_values() { return random_values("projected", kBlocks * kShape.width()); }
Tensor biases_on(const ExecContext& ctx) {
  return make_tensor({kShape.biases()}, DType::f32, random_values("biases", kShape.biases(), 0.1), ctx);
}

Tensor scores_of(const Values& projected, const ExecContext& ctx) {
  const Tensor x = make_tensor({kBlocks, kShape.width()}, DType::f32, projected, ctx);
  const Tensor scores = ctx.empty({kBlocks, kShape.count, kBlocks});
  index_scores_kernel({x, scores, kShape, {{0, 0, 0, 0, kBlocks}}, biases_on(ctx)}, ctx);
  return scores;
}

// A block's input changes only the scores of later blocks.
TEST_P(BlockIndex, DoesNotLookAhead) {
  const ExecContext ctx = context();
  const auto before = to_host<float>(scores_of(projected_values(), ctx), ctx.stream);
  for (const int block : {0, 1, 17, 38}) {
    Values changed = projected_values();
    for (std::int64_t c = 0; c < kShape.width(); ++c)
      changed[static_cast<std::size_t>(block * kShape.width() + c)] += c % 2 ? 3 : -2;
    const auto after = to_host<float>(scores_of(changed, ctx), ctx.stream);
    const auto same_until = static_cast<std::ptrdiff_t>((block + 1) * kShape.count * kBlocks);
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + same_until, after.begin())) << block;
    EXPECT_FALSE(std::equal(before.begin(), before.end(), after.begin())) << block;
  }
}

// One block of a document, as generation computes it, has the scores and the selection of the whole document.
TEST_P(BlockIndex, OfOneBlockIsThatOfAll) {
  const ExecContext ctx = context();
  const auto blocks = std::make_shared<const BlockPattern>(64, std::vector{kContent});
  const Tensor all = scores_of(projected_values(), ctx), one = ctx.empty({1, kShape.count, kBlocks});
  const Tensor x = make_tensor({kBlocks, kShape.width()}, DType::f32, projected_values(), ctx);
  const Tensor kept = ctx.empty({kBlocks, 2, 6}, DType::i32), kept_one = ctx.empty({1, 2, 6}, DType::i32);
  block_select_kernel({{}, {}, kept, {{0, 0, 0, 0, kBlocks}}, blocks, all}, ctx);
  const auto scores = to_host<float>(all, ctx.stream);
  const auto lists = to_host<std::int32_t>(kept, ctx.stream);
  for (const std::int32_t own : {0, 1, 5, 39}) {
    index_scores_kernel({x, one, kShape, {{0, 0, -own, own, own + 1}}, biases_on(ctx)}, ctx);
    block_select_kernel({{}, {}, kept_one, {{0, 0, -own, own, own + 1}}, blocks, one}, ctx);
    const auto row = to_host<float>(one, ctx.stream);
    EXPECT_TRUE(std::equal(row.begin(), row.end(), scores.begin() + own * 2 * kBlocks)) << own;
    const auto list = to_host<std::int32_t>(kept_one, ctx.stream);
    EXPECT_TRUE(std::equal(list.begin(), list.end(), lists.begin() + own * 2 * 6)) << own;
  }
}

// Selecting in chunks of query blocks gives the same blocks as selecting for all query blocks at once. Documents begin
// and end within chunks.
TEST_P(BlockIndex, SelectsInChunksAsAtOnce) {
  const ExecContext ctx = context();
  const IndexShape shape{.heads = 1, .dim = 4, .kv_heads = 2, .count = 2, .distances = 9};
  const std::vector<std::int32_t> counts = {700, 3, 0, 1500};
  const std::int64_t rows = 2203, max = 1500;
  ASSERT_GT(rows * shape.count * max * 4, 3 * kScoreBytes) << "there is one chunk only";
  const auto blocks = std::make_shared<const BlockPattern>(64, std::vector{kContent});
  const Tensor x = make_tensor({rows, shape.width()}, DType::f32, random_values("many", rows * shape.width()), ctx);
  const Tensor biases = make_tensor({shape.biases()}, DType::f32, random_values("few", shape.biases(), 0.1), ctx);
  const IndexSelection got = select_by_index(x, biases, shape, whole_documents(counts), rows, blocks, ctx);
  const Tensor scores = ctx.empty({rows, shape.count, max});
  const std::vector<SelectedRows> documents = {{0, 0, 0, 0, 700}, {700, 700, 700, 0, 3}, {703, 703, 703, 0, 1500}};
  index_scores_kernel({x, scores, shape, documents, biases}, ctx);
  const Tensor kept = ctx.empty({rows, 2, 6}, DType::i32), kept_scores = ctx.empty(kept.shape());
  block_select_kernel({{}, {}, kept, documents, blocks, scores, 1, kept_scores}, ctx);
  EXPECT_EQ(to_host<std::int32_t>(got.selection.kept, ctx.stream), to_host<std::int32_t>(kept, ctx.stream));
  EXPECT_EQ(to_host<float>(got.scores, ctx.stream), to_host<float>(kept_scores, ctx.stream));
}

// The gradient over no documents is 0 if it is stored, and leaves its target unchanged if it is added.
TEST_P(BlockIndex, DistancesOfNoBlocks) {
  const ExecContext ctx = context();
  const Tensor dscores = ctx.empty({2, kShape.count, 1}), dbiases = biases_on(ctx);
  const Tensor kept = ctx.zeros({2, kShape.count, 1}, DType::i32);
  const auto before = to_host<float>(dbiases, ctx.stream);
  index_distances_backward_kernel({kept, dscores, dbiases, kShape, {}, 1}, ctx);
  EXPECT_EQ(to_host<float>(dbiases, ctx.stream), before);
  index_distances_backward_kernel({kept, dscores, dbiases, kShape, {}, 0}, ctx);
  EXPECT_EQ(to_host<float>(dbiases, ctx.stream), std::vector<float>(before.size(), 0.0f));
}

// The last block of a document has no scores: the gradient of its row is 0, even if a thread's memory still holds
// another row.
TEST_P(BlockIndex, LastBlocksHaveNoGradient) {
  const ExecContext ctx = context();
  constexpr int kDocuments = 400;
  std::vector<SelectedRows> documents;
  std::int32_t rows = 0;
  for (int d = 0; d < kDocuments; ++d) {
    const std::int32_t blocks = 1 + d % 3;
    documents.push_back({rows, rows, rows, 0, blocks});
    rows += blocks;
  }
  const Tensor x = make_tensor({rows, kShape.width()}, DType::f32, random_values("x", rows * kShape.width()), ctx);
  const Tensor dscores =
      make_tensor({rows, kShape.count, 3}, DType::f32, random_values("dscores", rows * kShape.count * 3), ctx);
  std::vector<std::int32_t> blocks;
  for (std::int32_t list = 0; list < rows * kShape.count; ++list) blocks.insert(blocks.end(), {0, 1, 2});
  const Tensor kept = from_host(blocks, ctx.stream).view(dscores.shape());
  std::vector<float> first;
  for (int repeat = 0; repeat < 20; ++repeat) {
    const Tensor dx = ctx.empty({rows, kShape.width()});
    index_scores_backward_kernel({x, kept, dscores, dx, kShape, documents, 0}, ctx);
    const auto gradient = to_host<float>(dx, ctx.stream);
    int wrong = 0;
    for (const SelectedRows& d : documents)
      for (std::int64_t c = 0; c < kShape.width(); ++c) {
        const bool key = c >= kShape.key() && c < kShape.weights();
        wrong += !key && gradient[static_cast<std::size_t>((d.kept + d.end - 1) * kShape.width() + c)] != 0;
      }
    ASSERT_EQ(wrong, 0) << "repeat " << repeat;
    if (repeat == 0) first = gradient;
    ASSERT_EQ(gradient, first) << "repeat " << repeat;
  }
}

// Gradients from the scores of some query blocks at a time, in separate score tensors, add up to the gradient from all.
TEST_P(BlockIndex, GradientsOfSomeQueryBlocksAddUp) {
  const ExecContext ctx = context();
  constexpr std::int32_t kFirst = 3, kRows = kFirst + kBlocks;  // the document's first row
  const std::int64_t row = kShape.count * kBlocks;
  const Tensor x = make_tensor({kRows, kShape.width()}, DType::f32, random_values("x", kRows * kShape.width()), ctx);
  const Tensor dscores =
      make_tensor({kBlocks, kShape.count, kBlocks}, DType::f32, random_values("dscores", kBlocks * row), ctx);
  std::vector<std::int32_t> lists;  // two of every three blocks
  for (std::int64_t list = 0; list < kBlocks * kShape.count; ++list) {
    for (std::int32_t k = 0; k < kBlocks; ++k)
      if ((k + list) % 3 > 0) lists.push_back(k);
    lists.resize(static_cast<std::size_t>((list + 1) * kBlocks), kNoBlock);
  }
  const Tensor kept = from_host(lists, ctx.stream).view(dscores.shape());
  const auto gradients = [&](const std::vector<std::int32_t>& cuts) {
    const Tensor dx = ctx.zeros(x.shape()), dbiases = ctx.zeros({kShape.biases()});
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const Tensor some = dscores.narrow(0, cuts[i], cuts[i + 1] - cuts[i]),
                   blocks = kept.narrow(0, cuts[i], cuts[i + 1] - cuts[i]);
      const std::vector<SelectedRows> document = {{kFirst, kFirst, -cuts[i], cuts[i], cuts[i + 1]}};
      index_scores_backward_kernel({x, blocks, some, dx, kShape, document, 1}, ctx);
      index_distances_backward_kernel({blocks, some, dbiases, kShape, document, 1}, ctx);
    }
    std::vector<float> all = to_host<float>(dx, ctx.stream);
    const std::vector<float> biases = to_host<float>(dbiases, ctx.stream);
    all.insert(all.end(), biases.begin(), biases.end());
    return all;
  };
  const std::vector<float> whole = gradients({0, kBlocks}), parts = gradients({0, 1, 5, 17, 39, kBlocks});
  ASSERT_EQ(whole.size(), parts.size());
  double largest = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NEAR(whole[i], parts[i], 1e-4 * (1 + std::abs(whole[i]))) << i;
    largest = std::max(largest, std::abs(static_cast<double>(whole[i])));
  }
  EXPECT_GT(largest, 0.1);
  for (std::size_t i = 0; i < kFirst * static_cast<std::size_t>(kShape.width()); ++i) ASSERT_EQ(parts[i], 0) << i;
}

// Buckets are contiguous, and each contains the distances that map to it. Their number only determines the last bucket.
TEST(DistanceBuckets, PartitionTheDistances) {
  for (const int count : {1, 2, 3, 7, 8, 9, 32, kMaxDistanceBuckets}) {
    int next = 1;
    for (int bucket = 0; bucket < count; ++bucket) {
      const DistanceRange range = distances_of(bucket, count);
      EXPECT_EQ(range.first, next) << bucket << " of " << count;
      next = range.end;
      for (const int d : {range.first, range.first + (range.end - range.first) / 2, range.end - 1})
        EXPECT_EQ(distance_bucket(d, count), bucket) << d << " of " << count;
    }
    EXPECT_EQ(next, INT_MAX);
  }
  EXPECT_EQ(distances_of(31, 32).first, 512);
  EXPECT_EQ(distance_bucket(511, 32), distance_bucket(511, 64));
}

// Expects ascending lists, which end with kNoBlock, and the scores of their blocks.
void expect_scores_of_lists(const Tensor& kept, const Tensor& kept_scores, const Tensor& scores,
                            const ExecContext& ctx) {
  const auto lists = to_host<std::int32_t>(kept, ctx.stream);
  const auto all = to_host<float>(scores, ctx.stream), got = to_host<float>(kept_scores, ctx.stream);
  const auto room = static_cast<std::size_t>(kept.dim(2)), blocks = static_cast<std::size_t>(scores.dim(2));
  for (std::size_t n = 0; n < lists.size(); ++n) {
    const bool follows = n % room > 0, none = lists[n] == kNoBlock;
    EXPECT_TRUE(!follows || (none ? lists[n - 1] == kNoBlock || lists[n - 1] >= 0 : lists[n] > lists[n - 1])) << n;
    const float want = none ? 0 : all[n / room * blocks + static_cast<std::size_t>(lists[n])];
    EXPECT_TRUE(got[n] == want || (std::isnan(got[n]) && std::isnan(want))) << n;
  }
}

// Given scores: the best blocks, the lower of equal ones, no NaN, and the blocks that the rule always keeps.
TEST_P(BlockIndex, SelectsByScores) {
  const ExecContext ctx = context();
  const BlockRule closed{.local = 3};
  const auto blocks =
      std::make_shared<const BlockPattern>(64, std::vector{kContent, closed}, std::vector<std::int32_t>{0, 1});
  Values scores = random_values("scores", kBlocks * 2 * kBlocks);
  for (std::size_t i = 0; i < scores.size(); i += 7) scores[i] = NAN;
  for (std::size_t i = 3; i < scores.size(); i += 5) scores[i] = 0.5;
  const Tensor given = make_tensor({kBlocks, 2, kBlocks}, DType::f32, scores, ctx);
  const Tensor kept = ctx.empty({kBlocks, 2, 7}, DType::i32), kept_scores = ctx.empty(kept.shape());
  block_select_kernel({{}, {}, kept, {{0, 0, 0, 0, kBlocks}}, blocks, given, 1, kept_scores}, ctx);
  const auto bits = bits_of_kept(kept, 2, ctx);
  expect_scores_of_lists(kept, kept_scores, given, ctx);
  for (int i = 0; i < kBlocks; ++i)
    for (int head = 0; head < 2; ++head) {
      const auto score = [&](int j) { return scores[static_cast<std::size_t>((i * 2 + head) * kBlocks + j)]; };
      const auto beats = [&](int a, int b) { return score(a) > score(b) || (score(a) == score(b) && a < b); };
      for (int j = 0; j < 64; ++j) {
        bool want = j <= i && (i - j < 2 || j < 1);
        if (head == 1) want = j <= i && i - j < 3;
        if (!want && head == 0 && j + 2 <= i && !std::isnan(score(j))) {
          int better = 0;
          for (int other = 1; other + 2 <= i; ++other) better += !std::isnan(score(other)) && beats(other, j);
          want = better < 6 - 3;
        }
        const auto word = static_cast<std::uint32_t>(bits[static_cast<std::size_t>((i * 2 + head) * 2 + j / 32)]);
        EXPECT_EQ((word >> (j % 32) & 1u) != 0, want) << i << ", " << head << ", " << j;
      }
    }
}

// Returns lists of all blocks for one head. They include blocks after the query block.
Tensor all_blocks(const ExecContext& ctx) {
  Values lists;
  for (int i = 0; i < kBlocks; ++i)
    for (int k = 0; k < kBlocks; ++k) lists.push_back(k);
  return make_tensor({kBlocks, 1, kBlocks}, DType::i32, lists, ctx);
}

// The gradient may overwrite the mass; the loss is the same.
TEST_P(BlockIndex, LossInPlaceOfTheMass) {
  const ExecContext ctx = context();
  Values mass = random_values("mass", kBlocks * kBlocks);
  for (double& m : mass) m = std::abs(m);
  const Tensor scores = make_tensor({kBlocks, 1, kBlocks}, DType::f32, random_values("s", kBlocks * kBlocks), ctx);
  const Tensor own = make_tensor(scores.shape(), DType::f32, mass, ctx);
  const Tensor shared = make_tensor(scores.shape(), DType::f32, mass, ctx), gradient = ctx.empty(scores.shape());
  const Tensor kept = all_blocks(ctx), loss = ctx.empty({kBlocks}), again = ctx.empty({kBlocks}),
               alone = ctx.empty({kBlocks});
  IndexLoss args{scores, own, kept, loss, gradient, {{0, 64 * kBlocks, 0, 0}}, nullptr};
  args.blocks = std::make_shared<const BlockPattern>(64, std::vector{kContent});
  index_loss_kernel(args, ctx);
  args.loss = alone, args.gradient = {};
  index_loss_kernel(args, ctx);
  args.loss = again, args.mass = args.gradient = shared;
  index_loss_kernel(args, ctx);
  EXPECT_EQ(to_host<float>(gradient, ctx.stream), to_host<float>(shared, ctx.stream));
  const auto losses = to_host<float>(loss, ctx.stream);
  EXPECT_EQ(losses, to_host<float>(again, ctx.stream));
  EXPECT_EQ(losses, to_host<float>(alone, ctx.stream));
  EXPECT_GT(losses[20], 0);
}

// Documents whose first rows are on other ranks: rows of those blocks stay unchanged, the others are those of the
// whole.
TEST_P(BlockIndex, LossOfSomeBlocksOfADocument) {
  const ExecContext ctx = context();
  Values mass = random_values("mass", kBlocks * kBlocks);
  for (double& m : mass) m = std::abs(m);
  const Tensor scores = make_tensor({kBlocks, 1, kBlocks}, DType::f32, random_values("s", kBlocks * kBlocks), ctx);
  const Tensor kept = all_blocks(ctx);
  const auto blocks = std::make_shared<const BlockPattern>(64, std::vector{kContent});
  const auto run = [&](std::vector<PoolSegment> documents, const Tensor& loss, const Tensor& gradient) {
    index_loss_kernel({scores, make_tensor(scores.shape(), DType::f32, mass, ctx), kept, loss, gradient,
                       std::move(documents), blocks},
                      ctx);
  };
  const Tensor loss = ctx.empty({kBlocks}), gradient = ctx.empty(scores.shape());
  run({{.count = 64 * kBlocks - 7, .out = 0}}, loss, gradient);
  const Tensor some = ctx.zeros({kBlocks}), some_gradient = ctx.zeros(scores.shape());
  const auto of_blocks = [](std::int32_t first, std::int32_t end) {
    return PoolSegment{.count = std::min(end * 64, 64 * static_cast<std::int32_t>(kBlocks) - 7) - first * 64,
                       .leading_gap = first * 64};
  };
  run({of_blocks(5, 9), of_blocks(30, kBlocks)}, some, some_gradient);
  const auto want = to_host<float>(loss, ctx.stream), got = to_host<float>(some, ctx.stream),
             all = to_host<float>(gradient, ctx.stream), part = to_host<float>(some_gradient, ctx.stream);
  for (std::size_t i = 0; i < want.size(); ++i) {
    const bool has = (i >= 5 && i < 9) || i >= 30;
    EXPECT_EQ(got[i], has ? want[i] : 0) << i;
    for (std::size_t j = i * want.size(); j < (i + 1) * want.size(); ++j) EXPECT_EQ(part[j], has ? all[j] : 0) << j;
  }
  EXPECT_GT(want[7], 0);
}

TEST(BlockIndexChecks, RefuseWhatDoesNotFit) {
  const ExecContext ctx{Stream::cpu(1)};
  const Tensor x = ctx.zeros({8, kShape.width()}), scores = ctx.zeros({8, 2, 8}),
               kept = ctx.zeros({8, 2, 8}, DType::i32);
  const Tensor biases = ctx.zeros({kShape.biases()});
  EXPECT_NO_THROW(index_scores_kernel({x, scores, kShape, {{0, 0, 0, 0, 8}}, biases}, ctx));
  EXPECT_THROW(index_scores_kernel({x, scores, kShape, {}, {}}, ctx), Error);
  EXPECT_THROW(index_scores_kernel({x, scores, kShape, {}, ctx.zeros({kShape.biases() - 1})}, ctx), Error);
  EXPECT_THROW(index_scores_kernel({x, scores, kShape, {}, ctx.zeros(biases.shape(), DType::bf16)}, ctx), Error);
  for (const SelectedRows& d : {SelectedRows{0, 0, 0, 0, 9}, SelectedRows{0, 0, 1, 0, 8}, SelectedRows{0, 2, 0, 0, 8},
                                SelectedRows{-1, 0, 0, 1, 8}, SelectedRows{0, 0, 0, 5, 4}})
    EXPECT_THROW(index_scores_kernel({x, scores, kShape, {d}, biases}, ctx), Error) << d.queries << d.keys << d.kept;
  IndexShape wrong = kShape;
  wrong.first_head = 2;
  EXPECT_THROW(index_scores_kernel({x, scores, wrong, {}, biases}, ctx), Error);
  wrong = kShape, wrong.heads = 3;
  EXPECT_THROW(index_scores_kernel({x, scores, wrong, {}, biases}, ctx), Error);
  wrong = kShape, wrong.distances = 0;
  EXPECT_THROW(index_scores_kernel({x, scores, wrong, {}, biases}, ctx), Error);
  wrong.distances = 65;
  EXPECT_THROW(index_scores_kernel({x, scores, wrong, {}, ctx.zeros({65 * 3})}, ctx), Error);
  EXPECT_NO_THROW(
      index_scores_backward_kernel({x, kept, scores, ctx.zeros(x.shape()), kShape, {{0, 0, 0, 0, 8}}}, ctx));
  for (const SelectedRows& d : {SelectedRows{0, 1, 0, 0, 7}, SelectedRows{0, 0, 0, 0, 9}, SelectedRows{0, 0, -2, 1, 8}})
    EXPECT_THROW(index_scores_backward_kernel({x, kept, scores, ctx.zeros(x.shape()), kShape, {d}}, ctx), Error)
        << d.kept;
  const Tensor fewer = ctx.zeros({8, 2, 7}, DType::i32);
  EXPECT_THROW(index_scores_backward_kernel({x, fewer, scores, ctx.zeros(x.shape()), kShape, {}}, ctx), Error);
  EXPECT_THROW(index_distances_backward_kernel({fewer, scores, biases, kShape, {}}, ctx), Error);
  EXPECT_THROW(index_scores_backward_kernel({x, kept, scores, ctx.zeros({7, 24}), kShape, {}}, ctx), Error);
  EXPECT_NO_THROW(index_distances_backward_kernel({kept, scores, biases, kShape, {{0, 0, 0, 0, 8}}}, ctx));
  EXPECT_THROW(index_distances_backward_kernel({kept, scores, {}, kShape, {{0, 0, 0, 0, 8}}}, ctx), Error);
  EXPECT_THROW(index_distances_backward_kernel({kept, scores, ctx.zeros({9}), kShape, {{0, 0, 0, 0, 8}}}, ctx), Error);
  for (const SelectedRows& d : {SelectedRows{0, 0, 0, 0, 9}, SelectedRows{1, 1, 1, 0, 8}, SelectedRows{0, 0, -2, 1, 8}})
    EXPECT_THROW(index_distances_backward_kernel({kept, scores, biases, kShape, {d}}, ctx), Error) << d.kept;
  const auto blocks = std::make_shared<const BlockPattern>(64, std::vector{kContent});
  IndexLoss loss{scores, scores, kept, ctx.zeros({8}), {}, {{0, 512, 0, 0}}, blocks};
  EXPECT_NO_THROW(index_loss_kernel(loss, ctx));
  loss.documents = {{0, 513, 0, 0}};
  EXPECT_THROW(index_loss_kernel(loss, ctx), Error);
  loss.documents = {{0, 128, 384, -6}};  // blocks 6 and 7, in rows 0 and 1
  EXPECT_NO_THROW(index_loss_kernel(loss, ctx));
  loss.documents = {{0, 128, 384, -7}};
  EXPECT_THROW(index_loss_kernel(loss, ctx), Error);
  loss.documents = {}, loss.kept = ctx.zeros({8, 1, 8}, DType::i32);
  EXPECT_THROW(index_loss_kernel(loss, ctx), Error);
  EXPECT_THROW(block_select_kernel({{}, {}, kept, {{0, 0, 0, 0, 9}}, blocks, scores}, ctx), Error);
  EXPECT_THROW(block_select_kernel({x, {}, kept, {}, blocks, scores}, ctx), Error);
}

}  // namespace
}  // namespace ring::test
