// Blocks that an indexer selects, from its warm-up on: every layout that has them against one process, documents packed
// in rows, and a run that goes on from a checkpoint.

#include <gtest/gtest.h>

#include <filesystem>

#include "comm/gloo/gloo.h"
#include "tests/parallel/one_process.h"

namespace ring::test {
namespace {

using Overrides = std::vector<std::string>;

// Some heads select, others do not, so that a slice may have none that does; two of four steps warm up.
TrainingOptions options(int ranks, const Overrides& more) {
  TrainingOptions o;
  o.ranks = ranks;
  o.steps = 4;
  o.overrides = {
      "model.context=320",
      "model.heads=8",
      "model.kv_heads=4",
      "model.head_dim=8",
      "model.dropout=0.1",
      "model.attention_dropout=0.1",
      "train.batch_size=4",
      "train.micro_batch=2",
      "model.attention.kind=block_sparse",
      "model.attention.block=64",
      "model.attention.rules=[{pattern: learned, keep: 3, first: 1}, {pattern: learned, keep: 2}, {local: 2}]",
      "model.attention.index_heads=2",
      "model.attention.index_head_dim=8",
      "model.attention.index_warmup_steps=2",
      "model.attention.heads=[0, 1, 1, 2]"};
  o.overrides.insert(o.overrides.end(), more.begin(), more.end());
  o.validate = true;
  return o;
}

class DistLearned : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(All, DistLearned,
                         testing::Values(Layout{"tp2", 2, {"parallel.tp=2"}}, Layout{"tp4", 4, {"parallel.tp=4"}},
                                         Layout{"dp2", 2, {}}, Layout{"zero3", 2, {"parallel.zero=3"}},
                                         Layout{"tp2_recompute", 2, {"parallel.tp=2", "train.recompute=full"}},
                                         Layout{"tp2_zero3", 4, {"parallel.tp=2", "parallel.zero=3"}},
                                         Layout{"tp2_packed", 2, {"parallel.tp=2", "data.packing.documents=true"}}),
                         [](const auto& info) { return info.param.name; });

TEST_P(DistLearned, EqualsOneProcess) { expect_equal_to_one_process(GetParam(), options); }

// That the comparisons above could tell: what is kept makes a difference, and indexers change.
TEST(LearnedTraining, DependsOnWhatIsSelected) {
  const Training a = train_on_ranks(options(1, {})),
                 b = train_on_ranks(options(1, {"model.attention.index_warmup_steps=9"})),
                 c = train_on_ranks(options(1, {"model.attention.index_loss=0", "optimizer.weight_decay=0"}));
  ASSERT_EQ(a.errors + b.errors + c.errors, "");
  EXPECT_GT(largest_difference(a, b), 10 * kWeights);
  EXPECT_EQ(a.losses[0], b.losses[0]);
  EXPECT_EQ(a.losses[1], b.losses[1]);
  EXPECT_NE(a.losses[2], b.losses[2]);
  const std::string indexer = "model.blocks.0.attention.index.";
  EXPECT_GT(largest_difference(a, c, indexer), 10 * kWeights);
}

TEST(LearnedTraining, GoesOnFromACheckpointWithTheSameBits) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "learned_resume";
  std::filesystem::remove_all(folder);
  const Training whole = train_on_ranks(options(1, {}));
  TrainingOptions first = options(1, {}), second = options(1, {});
  first.steps = second.steps = 2;
  first.save = folder.string();
  const Training half = train_on_ranks(first);
  ASSERT_EQ(half.errors, "");
  second.load = half.checkpoint;  // in the last step of the warm-up
  const Training rest = train_on_ranks(second);
  ASSERT_EQ(whole.errors + rest.errors, "");
  EXPECT_EQ(rest.losses, (std::vector<double>{whole.losses.begin() + 2, whole.losses.end()}));
  EXPECT_EQ(largest_difference(whole, rest), 0);
}

TEST(LearnedTraining, RefusesContextParallelism) {
  const Training t = train_on_ranks(options(2, {"parallel.cp=2"}));
  EXPECT_NE(t.errors.find("parallel.cp: 2 ranks share each sequence, but model.attention.rules with pattern: learned "
                          "need whole ones: set parallel.cp to 1"),
            std::string::npos)
      << t.errors;
}

}  // namespace
}  // namespace ring::test
