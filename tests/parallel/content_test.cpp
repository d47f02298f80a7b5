// Blocks selected by content: every layout that supports them against one process, documents packed in rows, and a run
// that is resumed from a checkpoint.

#include <gtest/gtest.h>

#include "tests/parallel/one_process.h"

namespace ring::test {
namespace {

// Some heads select and others do not; there are five blocks, of which a block sees three.
TrainingOptions content_options(int ranks, const Overrides& more) {
  return short_run(
      ranks,
      {"model.attention_dropout=0.1", "model.attention.kind=block_sparse", "model.attention.block=64",
       "model.attention.rules=[{pattern: content, keep: 3, first: 1}, {pattern: content, keep: 2}, {local: 2}]",
       "model.attention.heads=[0, 1, 1, 2]"},
      more);
}

const std::string kAllKeys = "parallel.cp_keys=all", kReferenced = "parallel.cp_keys=referenced";
const std::string kMass =
    "model.attention.rules=[{pattern: content, keep: 5, mass: 0.55}, {pattern: content, keep: 4, "
    "first: 1, mass: 0.4}, {local: 2}]";

using DistContent = LayoutTest;
INSTANTIATE_TEST_SUITE_P(
    All, DistContent,
    testing::Values(Layout{"tp2", 2, {"parallel.tp=2"}}, Layout{"tp4", 4, {"parallel.tp=4"}},
                    Layout{"cp2", 2, {"parallel.cp=2"}}, Layout{"cp4", 4, {"parallel.cp=4"}},
                    Layout{"cp2_tp2", 4, {"parallel.cp=2", "parallel.tp=2"}},
                    Layout{"cp2_zero3", 4, {"parallel.cp=2", "parallel.zero=3"}},
                    Layout{"cp2_packed", 2, {"parallel.cp=2", "data.packing.documents=true"}},
                    Layout{"cp2_recomputed", 2, {"parallel.cp=2", "train.recompute=full"}}, Layout{"ring", 2, kRing},
                    Layout{"ring4", 4, {"parallel.cp=4", kRing[1]}},
                    Layout{"ring_packed", 2, {kRing[0], kRing[1], "data.packing.documents=true"}},
                    Layout{"ring_zigzag", 2, {kRing[0], kRing[1], "parallel.cp_layout=zigzag"}},
                    Layout{"ring_tp2", 4, {kRing[0], kRing[1], "parallel.tp=2"}},
                    Layout{"ring_all_keys", 2, {kRing[0], kRing[1], kAllKeys}},
                    Layout{"ring_referenced", 2, {kRing[0], kRing[1], kReferenced}},
                    Layout{"ring4_zigzag_packed",
                           4,
                           {"parallel.cp=4", kRing[1], "parallel.cp_layout=zigzag", "data.packing.documents=true"}},
                    Layout{"ring_recomputed", 2, {kRing[0], kRing[1], "train.recompute=full"}},
                    Layout{"ring_reuse", 2, {kRing[0], kRing[1], "model.attention.layers_per_selection=2"}},
                    Layout{"gather", 2, {"parallel.cp=2", "parallel.cp_schedule=gather"}},
                    Layout{"gather_zero3", 4, {"parallel.cp=2", "parallel.zero=3", kGather}},
                    Layout{"gather_all_keys", 2, {"parallel.cp=2", kGather, kAllKeys}},
                    Layout{"gather4_zigzag_packed",
                           4,
                           {"parallel.cp=4", kGather, "parallel.cp_layout=zigzag", "data.packing.documents=true"}},
                    Layout{"gather_tp2", 4, {"parallel.cp=2", kGather, "parallel.tp=2"}},
                    Layout{"gather_recomputed", 2, {"parallel.cp=2", kGather, "train.recompute=full"}},
                    Layout{"gather_reuse", 2, {"parallel.cp=2", kGather, "model.attention.layers_per_selection=2"}},
                    Layout{"zero3", 2, {"parallel.zero=3"}},
                    Layout{"mass_tp2_zero3", 4, {"parallel.tp=2", "parallel.zero=3", kMass}},
                    Layout{"mass_cp2", 2, {"parallel.cp=2", kMass}},
                    Layout{"mass_ring_packed", 2, {kRing[0], kRing[1], "data.packing.documents=true", kMass}},
                    Layout{"mass_gather", 2, {"parallel.cp=2", kGather, kMass}},
                    Layout{"tp2_zero3", 4, {"parallel.tp=2", "parallel.zero=3"}},
                    Layout{"tp2_packed", 2, {"parallel.tp=2", "data.packing.documents=true"}}),
    [](const auto& info) { return info.param.name; });

// No two scores of these runs are close, so that every layout selects the same blocks.
TEST_P(DistContent, EqualsOneProcess) { expect_equal_to_one_process(GetParam(), content_options); }

// One head cannot be divided, so auto chooses the ring.
TEST(DistContentRing, OneHeadEqualsOneProcess) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  expect_equal_to_one_process({"one_head", 2, {"parallel.cp=2"}}, [](int ranks, const Overrides& more) {
    TrainingOptions o = content_options(ranks, more);
    o.overrides.insert(o.overrides.end(), {"model.kv_heads=1", "model.attention.heads=[0]"});
    return o;
  });
}

// Sanity check of the comparisons above: different rules give a different model.
TEST(ContentTraining, DependsOnTheSelection) {
  const Training a = train_on_ranks(content_options(1, {})),
                 b = train_on_ranks(content_options(1, {"model.attention.rules=[{local: 3}, {local: 2}, {local: 2}]"}));
  ASSERT_EQ(a.errors + b.errors, "");
  EXPECT_GT(largest_difference(a, b), 10 * kWeights);
}

TEST(ContentTraining, DependsOnTheMass) {
  const std::string rules = "model.attention.rules=[{pattern: content, keep: 5MASS}, {local: 2}, {local: 2}]";
  const auto with = [&](const std::string& mass) {
    std::string all = rules;
    const Training t = train_on_ranks(content_options(1, {all.replace(all.find("MASS"), 4, mass)}));
    EXPECT_EQ(t.errors, "");
    return t;
  };
  const Training off = with(""), one = with(", mass: 1"), some = with(", mass: 0.55");
  EXPECT_TRUE(same_bits(off, one));
  EXPECT_GT(largest_difference(off, some), 10 * kWeights);
}

TEST(ContentTraining, ResumesFromACheckpointWithTheSameBits) {
  expect_resume_is_exact(content_options, 2, "content_resume");
}

// The same keys are used, whether all of them are sent or fewer; the backward requests the forward's keys.
TEST(ContentTraining, BitsDoNotDependOnTheKeysSent) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  for (const std::string& schedule : {kRing[1], kGather})
    for (const std::string more : {"train.recompute=full", "data.packing.documents=true"}) {
      const auto with = [&](const std::string& keys) {
        const Training t = train_on_ranks(content_options(2, {"parallel.cp=2", schedule, more, keys}));
        EXPECT_EQ(t.errors, "");
        return t;
      };
      const Training all = with(kAllKeys);
      EXPECT_TRUE(same_bits(all, with(kReferenced))) << schedule << ", " << more;
      EXPECT_TRUE(same_bits(all, with("parallel.cp_keys=auto"))) << schedule << ", " << more;
    }
}

// A run on two ranks is resumed from a checkpoint.
TEST(ContentTraining, ResumesOnTwoRanksWithTheSameBits) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  const auto of_two = [](int, const Overrides& more) {
    TrainingOptions o = content_options(2, more);
    o.overrides.insert(o.overrides.end(), {kRing[0], kRing[1], kReferenced});
    return o;
  };
  expect_resume_is_exact(of_two, 2, "content_resume_ring");
}

// Steps take the same memory for every selection (otherwise they have no slab), and as much as planned.
TEST(DistContentMemory, AStepTakesThePlannedMemory) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  for (const std::string& schedule : {kRing[1], kGather})
    for (const std::string& cp : {std::string("parallel.cp=2"), std::string("parallel.cp=4")})
      for (const std::string& keys : {kAllKeys, kReferenced}) {
        TrainingOptions o = content_options(cp.back() - '0', {cp, schedule, keys, "train.recompute=full"});
        o.dry = true;
        const Training t = train_on_ranks(o);
        ASSERT_EQ(t.errors, "");
        ASSERT_EQ(t.slabs.size(), static_cast<std::size_t>(o.ranks));
        for (std::size_t r = 0; r < t.slabs.size(); ++r) {
          EXPECT_GT(t.slabs[r], 0u) << "no two steps took the same";
          const auto took = static_cast<double>(t.slabs[r]);
          EXPECT_NEAR(static_cast<double>(t.dry_slabs[r]), took, 0.03 * took)
              << schedule << ", " << cp << ", " << keys << ", rank " << r;
        }
      }
}

TEST(ContentTraining, HeadsThatAllToAllCannotDivideAreRefused) {
  const Training t = train_on_ranks(content_options(
      2, {"parallel.cp=2", "parallel.cp_schedule=all_to_all", "model.kv_heads=1", "model.attention.heads=[0]"}));
  for (const char* part : {"parallel.cp_schedule: all_to_all", "1 (model.kv_heads: 1)", "among 2", "ring or gather"})
    EXPECT_NE(t.errors.find(part), std::string::npos) << part << " is not in: " << t.errors;
}

}  // namespace
}  // namespace ring::test
