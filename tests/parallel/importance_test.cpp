// Blocks kept by importance during training: every layout that supports them against one process, and a run that is
// resumed in the middle of an interval.

#include <gtest/gtest.h>

#include "tests/parallel/one_process.h"

namespace ring::test {
namespace {

// A block sees four of eight blocks. Masses are measured in every step, and blocks are chosen in every third.
TrainingOptions importance_options(int ranks, const Overrides& more) {
  TrainingOptions o = short_run(
      ranks,
      {"model.context=512", "train.micro_batch=0", "model.attention.kind=block_sparse", "model.attention.block=64",
       "model.attention.rules=[{pattern: importance, keep: 4, first: 1, interval: 3, explore: 1}, {local: 2}]",
       "model.attention.heads=[0, 0, 0, 1]"},
      more);
  o.steps = 8;
  return o;
}

using DistImportance = LayoutTest;
INSTANTIATE_TEST_SUITE_P(
    All, DistImportance,
    testing::Values(Layout{"dp2", 2, {}}, Layout{"tp2", 2, {"parallel.tp=2"}}, Layout{"tp4", 4, {"parallel.tp=4"}},
                    Layout{"cp2", 2, {"parallel.cp=2"}}, Layout{"cp4", 4, {"parallel.cp=4"}},
                    Layout{"cp2_tp2", 4, {"parallel.cp=2", "parallel.tp=2"}}, Layout{"cp2_dp2", 4, {"parallel.cp=2"}},
                    Layout{"cp2_zero3", 4, {"parallel.cp=2", "parallel.zero=3"}},
                    Layout{"cp2_packed", 2, {"parallel.cp=2", "data.packing.documents=true"}},
                    Layout{"cp2_recomputed", 2, {"parallel.cp=2", "train.recompute=full"}}, Layout{"ring", 2, kRing},
                    Layout{"ring4", 4, {"parallel.cp=4", kRing[1]}},
                    Layout{"ring_zigzag", 2, {kRing[0], kRing[1], "parallel.cp_layout=zigzag"}},
                    Layout{"ring_packed", 2, {kRing[0], kRing[1], "data.packing.documents=true"}},
                    Layout{"ring_tp2", 4, {kRing[0], kRing[1], "parallel.tp=2"}}, Layout{"ring_dp2", 4, kRing},
                    Layout{"gather", 2, {"parallel.cp=2", kGather}},
                    Layout{"gather_zero3", 4, {"parallel.cp=2", kGather, "parallel.zero=3"}},
                    Layout{"gather_packed",
                           2,
                           {"parallel.cp=2", kGather, "parallel.cp_layout=zigzag", "data.packing.documents=true"}},
                    Layout{"zero3", 2, {"parallel.zero=3"}},
                    Layout{"tp2_zero3", 4, {"parallel.tp=2", "parallel.zero=3"}},
                    Layout{"tp2_packed", 2, {"parallel.tp=2", "data.packing.documents=true"}},
                    Layout{"recomputed", 1, {"train.recompute=full"}}),
    [](const auto& info) { return info.param.name; });

TEST_P(DistImportance, EqualsOneProcess) { expect_equal_to_one_process(GetParam(), importance_options); }

// Sanity check of the comparisons above: without choices the model is a different one.
TEST(ImportanceTraining, DependsOnTheChosenBlocks) {
  const Training a = train_on_ranks(importance_options(1, {})),
                 b = train_on_ranks(
                     importance_options(1, {"model.attention.rules=[{pattern: importance, keep: 4, first: 1, "
                                            "interval: 1000, explore: 1}, {local: 2}]"}));
  ASSERT_EQ(a.errors + b.errors, "");
  EXPECT_EQ((std::vector<double>{a.losses.begin(), a.losses.begin() + 2}),
            (std::vector<double>{b.losses.begin(), b.losses.begin() + 2}))
      << "nothing was chosen yet";
  EXPECT_NE(a.losses[2], b.losses[2]) << "blocks are chosen ahead of the third step";
}

TEST(ImportanceTraining, ResumesFromACheckpointWithTheSameBits) {
  for (const int steps : {4, 5, 6}) expect_resume_is_exact(importance_options, steps, "importance_resume");
}

// One head cannot be divided, so auto chooses the ring.
TEST(DistImportanceRing, OneHeadEqualsOneProcess) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  expect_equal_to_one_process({"one_head", 2, {"parallel.cp=2"}}, [](int ranks, const Overrides& more) {
    TrainingOptions o = importance_options(ranks, more);
    o.overrides.insert(o.overrides.end(), {"model.kv_heads=1", "model.attention.heads=[0]"});
    return o;
  });
}

}  // namespace
}  // namespace ring::test
