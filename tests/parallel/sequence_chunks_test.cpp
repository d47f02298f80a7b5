// Sequences that are computed in chunks (train.sequence_chunk), against whole sequences.

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "comm/gloo/gloo.h"
#include "kernels/attention/blocks.h"
#include "parallel/context/chunk_plan.h"
#include "parallel/context/layout.h"
#include "parallel/context/long_branches.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

struct ChunkCase {
  std::string name;
  std::vector<std::string> overrides;
  std::int64_t chunk = 32, other_chunk = 50;  // tokens; the other ones are not all equally long
};
void PrintTo(const ChunkCase& k, std::ostream* out) { *out << k.name; }

// Seven blocks; some heads select and others do not. Two of eight steps are the indexers' warm-up.
ChunkCase selecting(const std::string& name, const std::string& rules, const std::vector<std::string>& more = {}) {
  ChunkCase c{name,
              {"model.context=448", "model.heads=8", "model.kv_heads=4", "model.head_dim=8",
               "model.attention.kind=block_sparse", "model.attention.block=64", "model.attention.rules=" + rules,
               "model.attention.heads=[0, 1, 1, 2]"},
              64,
              160};
  c.overrides.insert(c.overrides.end(), more.begin(), more.end());
  return c;
}
const std::string kContentRules = "[{pattern: content, keep: 3, first: 1}, {pattern: content, keep: 2}, {local: 2}]";
const std::string kMassRules = "[{pattern: content, keep: 5, mass: 0.55}, {pattern: content, keep: 4}, {local: 2}]";
const std::string kLearnedRules = "[{pattern: learned, keep: 3, first: 1}, {pattern: learned, keep: 2}, {local: 2}]";
const std::vector<std::string> kIndexers = {"model.attention.index_heads=2", "model.attention.index_head_dim=8",
                                            "model.attention.index_distances=4",
                                            "model.attention.index_warmup_steps=2"};
std::vector<std::string> packed_indexers() {
  std::vector<std::string> all = kIndexers;
  all.push_back("data.packing.documents=true");
  return all;
}

const std::vector<ChunkCase>& chunk_cases() {
  static const std::vector<ChunkCase> all = {
      {"dense", {}},
      {"dense_packed", {"data.packing.documents=true"}},
      {"learned_positions", {"model.positions=learned", "data.packing.documents=true"}},
      {"window",
       {"model.attention.kind=window", "model.attention.window=24", "model.attention.sinks=2",
        "model.learned_sinks=true"}},
      {"wide_window_packed",
       {"model.attention.kind=window", "model.attention.window=70", "data.packing.documents=true"}},
      {"dilated",
       {"model.attention.kind=dilated", "model.attention.segments=[16,64,128]", "model.attention.rates=[1,2,4]"}},
      {"dilated_packed",
       {"model.attention.kind=dilated", "model.attention.segments=[16,128]", "model.attention.rates=[1,2]",
        "data.packing.documents=true"}},
      {"long_branches",
       {"model.attention.kind=dilated", "model.attention.segments=[16,64,128]", "model.attention.rates=[1,2,4]",
        "model.attention_dropout=0"}},
      {"long_branches_without_pairs_twice",
       {"model.attention.kind=dilated", "model.attention.segments=[8,16,64,1024]", "model.attention.rates=[1,2,8,16]",
        "model.attention.dedup=true", "model.attention_dropout=0"}},
      {"block_sparse",
       {"model.attention.kind=block_sparse", "model.attention.rules=[{pattern: local_global, local: 1, first: 1}]",
        "model.attention.block=64"}}};
  return all;
}

const std::vector<ChunkCase>& selecting_cases() {
  static const std::vector<ChunkCase> all = {
      selecting("content", kContentRules),
      selecting("content_packed", kContentRules, {"data.packing.documents=true"}),
      selecting("content_reuse", kContentRules, {"model.attention.layers_per_selection=2"}),
      selecting("content_by_mass", kMassRules),
      selecting("learned", kLearnedRules, kIndexers),
      selecting("learned_packed", kLearnedRules, packed_indexers())};
  return all;
}

TrainingOptions options_of(const ChunkCase& c) {
  TrainingOptions o;
  o.steps = 8;
  o.overrides = {"model.context=128", "model.dropout=0.1", "model.attention_dropout=0.2", "train.batch_size=2",
                 "train.micro_batch=1"};
  o.overrides.insert(o.overrides.end(), c.overrides.begin(), c.overrides.end());
  o.validate = o.score = true;
  return o;
}

const Training& on_whole(const ChunkCase& c) {
  static std::map<std::string, Training> known;
  if (!known.count(c.name)) known[c.name] = train_on_ranks(options_of(c));
  return known[c.name];
}

Training in_chunks(const ChunkCase& c, std::int64_t tokens, const std::vector<std::string>& more = {}, int ranks = 1) {
  TrainingOptions o = options_of(c);
  o.ranks = ranks;
  o.overrides.push_back("train.sequence_chunk=" + std::to_string(tokens));
  o.overrides.insert(o.overrides.end(), more.begin(), more.end());
  return train_on_ranks(o);
}

// Bounds for f32 sums in a different order after 8 steps of AdamW.
constexpr double kChunkLoss = 2e-6, kChunkWeights = 1e-3;

void expect_near(const Training& whole, const Training& chunks) {
  ASSERT_EQ(whole.errors, "");
  ASSERT_EQ(chunks.errors, "");
  EXPECT_LE(largest_loss_difference(whole, chunks), kChunkLoss);
  EXPECT_LE(largest_difference(whole, chunks), kChunkWeights);
  ASSERT_EQ(whole.index_losses.size(), chunks.index_losses.size());
  for (std::size_t i = 0; i < whole.index_losses.size(); ++i)
    EXPECT_NEAR(whole.index_losses[i], chunks.index_losses[i], 1e-4 * whole.index_losses[i]) << i;
  EXPECT_LE(std::abs(whole.validation - chunks.validation), kChunkLoss * whole.validation);
  ASSERT_EQ(whole.scores.size(), chunks.scores.size());
  for (std::size_t i = 0; i < whole.scores.size(); ++i)
    EXPECT_NEAR(whole.scores[i], chunks.scores[i], 1e-4 * std::abs(whole.scores[i]));
}

class SequenceChunks : public testing::TestWithParam<ChunkCase> {};
INSTANTIATE_TEST_SUITE_P(Kinds, SequenceChunks, testing::ValuesIn(chunk_cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Selecting, SequenceChunks, testing::ValuesIn(selecting_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SequenceChunks, EqualWholeSequences) {
  const Training equal = in_chunks(GetParam(), GetParam().chunk);
  expect_near(on_whole(GetParam()), equal);
  EXPECT_NE(equal.losses, on_whole(GetParam()).losses) << "rounding does not differ, so nothing was in chunks";
  expect_near(on_whole(GetParam()), in_chunks(GetParam(), GetParam().other_chunk));
}

TEST_P(SequenceChunks, GiveTheSameBitsFromHostMemoryAndWithRecomputation) {
  const Training device = in_chunks(GetParam(), GetParam().chunk);
  ASSERT_EQ(device.errors, "");
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"train.activation_offload=true"}, {"train.recompute=full"}, {"train.recompute=none"}})
    EXPECT_TRUE(same_bits(device, in_chunks(GetParam(), GetParam().chunk, more))) << more[0];
}

TEST(SequenceChunksInLayouts, EqualOneProcess) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  const ChunkCase& dilated = chunk_cases()[5];
  expect_near(on_whole(dilated), in_chunks(dilated, 32, {"parallel.tp=2"}, 2));
  expect_near(on_whole(dilated), in_chunks(dilated, 32, {"parallel.dp=2", "parallel.zero=3"}, 2));
  const ChunkCase &content = selecting_cases()[0], &learned = selecting_cases()[4];
  expect_near(on_whole(content), in_chunks(content, 128, {"parallel.tp=2"}, 2));
  expect_near(on_whole(learned), in_chunks(learned, 128, {"parallel.tp=2"}, 2));
  expect_near(on_whole(learned), in_chunks(learned, 128, {"parallel.dp=2", "parallel.zero=3"}, 2));
}

// Two ranks share each chunk: 16 tokens each, or, of chunks that are not equally long, 21 and 22.
class DistSequenceChunks : public testing::TestWithParam<ChunkCase> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, DistSequenceChunks, testing::ValuesIn(chunk_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DistSequenceChunks, SharedByTwoRanksEqualOneProcess) {
  const Training two = in_chunks(GetParam(), 32, {"parallel.cp=2"}, 2);
  expect_near(on_whole(GetParam()), two);
  expect_near(in_chunks(GetParam(), 32), two);
  expect_near(on_whole(GetParam()), in_chunks(GetParam(), 50, {"parallel.cp=2"}, 2));
  EXPECT_TRUE(same_bits(two, in_chunks(GetParam(), 32,
                                       {"parallel.cp=2", "parallel.cp_schedule=all_to_all", "train.recompute=full",
                                        "train.activation_offload=true"},
                                       2)));
}

// Two ranks have heads that select and heads that do not; of four ranks, one has no head that selects.
class DistSelectingChunks : public DistSequenceChunks {};
INSTANTIATE_TEST_SUITE_P(Kinds, DistSelectingChunks, testing::ValuesIn(selecting_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DistSelectingChunks, SharedByRanksEqualOneProcess) {
  const Training two = in_chunks(GetParam(), 128, {"parallel.cp=2"}, 2);
  expect_near(on_whole(GetParam()), two);
  EXPECT_TRUE(same_bits(
      two, in_chunks(GetParam(), 128, {"parallel.cp=2", "train.recompute=full", "train.activation_offload=true"}, 2)));
  expect_near(on_whole(GetParam()), in_chunks(GetParam(), 256, {"parallel.cp=4"}, 4));
}

// With four KV heads, each of two ranks computes two of them one after the other, and four ranks one each.
TEST(DistSequenceChunksInLayouts, SharedByRanksEqualOneProcess) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  ChunkCase c = chunk_cases()[6];  // dilated_packed
  c.name = "four_kv_heads", c.overrides.emplace_back("model.kv_heads=4");
  for (const std::vector<std::string>& layout : {std::vector<std::string>{"parallel.cp=4"},
                                                 {"parallel.cp=2", "parallel.tp=2"},
                                                 {"parallel.cp=2", "parallel.zero=3"}})
    expect_near(on_whole(c), in_chunks(c, 32, layout, 4));
  expect_near(on_whole(c), in_chunks(c, 32, {"parallel.cp=2", "train.mlp_chunk=10"}, 2));
}

TEST(SequenceChunksInLayouts, ErrorsSayWhatToSet) {
  const auto error = [](const std::vector<std::string>& more) { return in_chunks({"", {}}, 32, more).errors; };
  EXPECT_NE(error({"train.micro_batch=2"}).find("train.micro_batch is 2. Set it to 1"), std::string::npos);
  EXPECT_NE(error({"model.context=262144", "train.sequence_chunk=1"}).find("more than 4096 chunks"), std::string::npos);
  EXPECT_NE(error({"model.attention.pools=[4]"}).find("model.attention.pools"), std::string::npos);
  const auto blocks = [&](const std::string& rules) {
    return error({"model.attention.kind=block_sparse", "model.attention.block=64", "model.attention.rules=" + rules});
  };
  EXPECT_NE(blocks("[{pattern: importance, keep: 2}]").find("pattern: importance"), std::string::npos);
  EXPECT_NE(blocks("[{pattern: content, keep: 2}]").find("Set it to at least 128"), std::string::npos);
}

ContextShards shards_of(std::int64_t length, int chunks) {
  const auto n = static_cast<std::int32_t>(length);
  return ContextLayout(ContextLayoutKind::contiguous, length, chunks).shards(0, 1, {{0, n, 0, 0}});
}

Pattern dilated(std::vector<Branch> branches, bool dedup) {
  Pattern p{.branches = std::move(branches)};
  p.dedup = dedup;
  return p;
}

TEST(SplitPatterns, SeparateBranchesThatAreLongerThanAChunk) {
  const ContextShards shards = shards_of(128, 4);
  const auto split = split_pattern(dilated({{16, 1}, {32, 2}, {64, 4}, {1024, 8}}, true), shards);
  ASSERT_TRUE(split);
  EXPECT_EQ(split->within_chunks.branches.size(), 2u);
  ASSERT_EQ(split->branches.size(), 2u);
  EXPECT_EQ(split->branches[0].segment, 64);
  EXPECT_EQ(split->branches[0].shorter, 32);
  EXPECT_EQ(split->branches[1].segment, 128);  // the sequence
  EXPECT_EQ(split->branches[1].shorter, 64);
}

TEST(SplitPatterns, RefuseWhatHasNoWholeSamples) {
  const ContextShards shards = shards_of(128, 4);
  EXPECT_FALSE(split_pattern(dilated({{16, 1}, {32, 2}}, false), shards)) << "no long branch";
  EXPECT_FALSE(split_pattern(dilated({{16, 1}, {48, 3}}, false), shards)) << "a segment that is no multiple of chunks";
  EXPECT_FALSE(split_pattern(dilated({{16, 1}, {64, 64}}, false), shards)) << "a rate above a chunk";
  EXPECT_FALSE(split_pattern(Pattern{}, shards)) << "no samples";
  EXPECT_FALSE(split_pattern(dilated({{16, 1}, {64, 2}}, false), shards_of(130, 4))) << "chunks of different lengths";
}

TEST(ChunkPlans, ChunksThatNeedTheSameRowsShareAMessage) {
  const std::vector<ChunkPlan> plans = make_chunk_plans(shards_of(64, 4), Pattern{}, 2, SpanPositions::in_order);
  ASSERT_EQ(plans.size(), 4u);
  for (std::size_t chunk = 0; chunk < 4; ++chunk) {
    EXPECT_EQ(plans[chunk].earlier.size(), chunk);
    EXPECT_EQ(plans[chunk].messages.size(), chunk < 3 ? 1u : 0u);
  }
}

TEST(ChunkPlans, AWindowNeedsTheEndOfThePreviousChunk) {
  const Pattern window{.branches = {Branch{.window = 5}}};
  const std::vector<ChunkPlan> plans = make_chunk_plans(shards_of(64, 4), window, 1, SpanPositions::in_order);
  for (std::size_t chunk = 1; chunk < 4; ++chunk) {
    ASSERT_EQ(plans[chunk].earlier.size(), 1u);
    EXPECT_EQ(plans[chunk].earlier[0].chunk, static_cast<int>(chunk) - 1);
    EXPECT_EQ(plans[chunk].earlier[0].need.row_heads(1), 4);
  }
}

// The selection of a chunk begins with the chunk's first block, wherever its document began.
TEST(ChunkPlans, SelectionsHaveRowsForTheBlocksOfAChunk) {
  const auto content = std::make_shared<const BlockPattern>(
      64, std::vector<BlockRule>{{.kind = BlockRuleKind::content, .local = 1, .keep = 2}});
  ContextShards shards = shards_of(256, 2);
  shards.documents = {{0, 96, 0, 0}, {96, 160, 96, 96}};  // blocks 0 and 1, then 2 (rows 96 to 127), 3 and 4
  const std::vector<ChunkPlan> plans = make_chunk_plans(shards, {.blocks = content}, 1, SpanPositions::in_order);
  ASSERT_EQ(plans[0].own.size(), 1u);
  EXPECT_EQ(plans[0].own[0].block_rows, (std::vector<std::int32_t>{0, 2}));
  ASSERT_EQ(plans[1].own.size(), 1u);
  EXPECT_EQ(plans[1].own[0].block_rows, (std::vector<std::int32_t>{-1}));
  ASSERT_EQ(plans[1].earlier.size(), 1u);
  EXPECT_EQ(plans[1].earlier[0].need.calls[0].block_rows, (std::vector<std::int32_t>{-1}));
}

TEST(ChunkPlans, LaterKeysAreRefused) {
  EXPECT_THROW(make_chunk_plans(shards_of(64, 4), Pattern{.causal = false}, 1, SpanPositions::in_order), Error);
}

}  // namespace
}  // namespace ring::test
