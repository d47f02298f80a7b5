// Blocks selected by an indexer, from its warm-up on: every layout that supports them against one process, documents
// packed in rows, and a run that is resumed from a checkpoint.

#include <gtest/gtest.h>

#include "tests/parallel/one_process.h"

namespace ring::test {
namespace {

// Some heads select and others do not, so that a slice may have no selecting head; two of four steps are warm-up.
TrainingOptions learned_options(int ranks, const Overrides& more) {
  return short_run(
      ranks,
      {"model.attention_dropout=0.1", "model.attention.kind=block_sparse", "model.attention.block=64",
       "model.attention.rules=[{pattern: learned, keep: 3, first: 1}, {pattern: learned, keep: 2}, {local: 2}]",
       "model.attention.index_heads=2", "model.attention.index_head_dim=8", "model.attention.index_distances=4",
       "model.attention.index_warmup_steps=2", "model.attention.heads=[0, 1, 1, 2]"},
      more);
}

using DistLearned = LayoutTest;
INSTANTIATE_TEST_SUITE_P(
    All, DistLearned,
    testing::Values(
        Layout{"tp2", 2, {"parallel.tp=2"}}, Layout{"tp4", 4, {"parallel.tp=4"}}, Layout{"cp2", 2, {"parallel.cp=2"}},
        Layout{"cp4", 4, {"parallel.cp=4"}}, Layout{"cp2_zigzag", 2, {"parallel.cp=2", "parallel.cp_layout=zigzag"}},
        Layout{"cp2_tp2", 4, {"parallel.cp=2", "parallel.tp=2"}},
        Layout{"cp2_zero3", 4, {"parallel.cp=2", "parallel.zero=3"}},
        Layout{"cp2_packed", 2, {"parallel.cp=2", "data.packing.documents=true"}},
        Layout{"cp2_recompute", 2, {"parallel.cp=2", "train.recompute=full"}}, Layout{"ring", 2, kRing},
        Layout{"ring4", 4, {"parallel.cp=4", kRing[1]}},
        Layout{"ring_zigzag", 2, {kRing[0], kRing[1], "parallel.cp_layout=zigzag"}},
        Layout{"ring_packed", 2, {kRing[0], kRing[1], "data.packing.documents=true"}},
        Layout{
            "ring4_packed", 4, {"parallel.cp=4", kRing[1], "parallel.cp_layout=zigzag", "data.packing.documents=true"}},
        Layout{"ring_tp2", 4, {kRing[0], kRing[1], "parallel.tp=2"}},
        Layout{"ring_zero3", 4, {kRing[0], kRing[1], "parallel.zero=3"}},
        Layout{"ring_recompute", 2, {kRing[0], kRing[1], "train.recompute=full"}},
        Layout{"ring_all_keys", 2, {kRing[0], kRing[1], "parallel.cp_keys=all"}},
        Layout{"ring_referenced", 2, {kRing[0], kRing[1], "parallel.cp_keys=referenced"}},
        Layout{"gather_all_keys", 2, {"parallel.cp=2", kGather, "parallel.cp_keys=all"}},
        Layout{"gather", 2, {"parallel.cp=2", kGather}},
        Layout{"gather_zigzag", 2, {"parallel.cp=2", kGather, "parallel.cp_layout=zigzag"}},
        Layout{"gather_packed", 2, {"parallel.cp=2", kGather, "data.packing.documents=true"}},
        Layout{"gather_tp2", 4, {"parallel.cp=2", kGather, "parallel.tp=2"}}, Layout{"dp2", 2, {}},
        Layout{"zero3", 2, {"parallel.zero=3"}}, Layout{"tp2_recompute", 2, {"parallel.tp=2", "train.recompute=full"}},
        Layout{"tp2_zero3", 4, {"parallel.tp=2", "parallel.zero=3"}},
        Layout{"tp2_packed", 2, {"parallel.tp=2", "data.packing.documents=true"}}),
    [](const auto& info) { return info.param.name; });

TEST_P(DistLearned, EqualsOneProcess) { expect_equal_to_one_process(GetParam(), learned_options); }

// Sanity check of the comparisons above: the selection matters, and indexers change.
TEST(LearnedTraining, DependsOnTheSelection) {
  const Training a = train_on_ranks(learned_options(1, {})),
                 b = train_on_ranks(learned_options(1, {"model.attention.index_warmup_steps=9"})),
                 c = train_on_ranks(learned_options(1, {"model.attention.index_loss=0", "optimizer.weight_decay=0"}));
  ASSERT_EQ(a.errors + b.errors + c.errors, "");
  EXPECT_GT(largest_difference(a, b), 10 * kWeights);
  EXPECT_EQ(a.losses[0], b.losses[0]);
  EXPECT_EQ(a.losses[1], b.losses[1]);
  EXPECT_NE(a.losses[2], b.losses[2]);
  const std::string indexer = "model.blocks.0.attention.index.";
  EXPECT_GT(largest_difference(a, c, indexer), 10 * kWeights);
  EXPECT_GT(largest_difference(a, c, indexer + "distance"), 10 * kWeights);
}

TEST(LearnedTraining, ResumesFromACheckpointWithTheSameBits) {
  expect_resume_is_exact(learned_options, 2, "learned_resume");
}  // in the last warm-up step

// One head cannot be divided, so auto chooses the ring.
TEST(DistLearnedRing, OneHeadEqualsOneProcess) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  expect_equal_to_one_process({"one_head", 2, {"parallel.cp=2"}}, [](int ranks, const Overrides& more) {
    TrainingOptions o = learned_options(ranks, more);
    o.overrides.insert(o.overrides.end(), {"model.kv_heads=1", "model.attention.heads=[0]"});
    return o;
  });
}

}  // namespace
}  // namespace ring::test
