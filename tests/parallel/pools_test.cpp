// Attention with pools: every layout that supports it against one process, documents packed in rows, recomputed
// activations, and a run that is resumed from a checkpoint.

#include <gtest/gtest.h>

#include "tests/parallel/one_process.h"

namespace ring::test {
namespace {

// One layer has windows and learned, gated pools of two sizes; another one also selects blocks.
TrainingOptions pools_options(int ranks, const Overrides& more) {
  return short_run(ranks,
                   {"model.attention={kind: window, window: 6, pools: [8, 50], pooling: learned, pool_gates: true}",
                    "model.attention_layers=[{layers: 1, attention: {kind: block_sparse, block: 64, rules: [{pattern: "
                    "content, keep: 2}], pools: [16]}}]"},
                   more);
}

const Overrides kGathered = {"parallel.cp=2", "parallel.cp_schedule=gather"};
const std::string
    kContiguous = "parallel.cp_layout=contiguous",
    kPacked = "data.packing.documents=true",
    kMeans = "model.attention={kind: window, window: 6, pools: [8, 50], pooling: mean, pool_gates: false}",
    kIndexed =
        "model.attention_layers=[{layers: 1, attention: {kind: block_sparse, block: 64, rules: [{pattern: "
        "learned, keep: 2}, {local: 2, first: 1}], heads: [0, 1, 1, 0], index_heads: 2, index_head_dim: "
        "8, index_warmup_steps: 2, pools: [16, 40], pool_gates: true}}]",
    kPlaces =
        "model.attention_layers=[{layers: 1, attention: {kind: block_sparse, block: 64, rules: [{local: 2}, "
        "{pattern: hierarchical}], heads: [0, 1, 1, 0], pools: [40]}}]";

using DistPools = LayoutTest;
INSTANTIATE_TEST_SUITE_P(
    All, DistPools,
    testing::Values(Layout{"dp2", 2, {"parallel.dp=2"}}, Layout{"tp2", 2, {"parallel.tp=2"}}, Layout{"ring", 2, kRing},
                    Layout{"ring4", 4, {"parallel.cp=4", kRing[1]}},
                    Layout{"ring4_contiguous", 4, {"parallel.cp=4", kRing[1], kContiguous}},
                    Layout{"ring_packed", 2, {kRing[0], kRing[1], kPacked}},
                    Layout{"ring_tp2", 4, {kRing[0], kRing[1], "parallel.tp=2"}},
                    Layout{"ring_zero3", 4, {kRing[0], kRing[1], "parallel.zero=3"}},
                    Layout{"ring_recomputed", 2, {kRing[0], kRing[1], "train.recompute=full"}},
                    Layout{"ring_means", 2, {kRing[0], kRing[1], kMeans}}, Layout{"gather", 2, kGathered},
                    Layout{"gather4_contiguous", 4, {"parallel.cp=4", kGathered[1], kContiguous}},
                    Layout{"gather_packed", 2, {kGathered[0], kGathered[1], kPacked}},
                    Layout{"gather_zero3", 4, {kGathered[0], kGathered[1], "parallel.zero=3"}},
                    Layout{"gather_recomputed", 2, {kGathered[0], kGathered[1], "train.recompute=full"}},
                    Layout{"gather_means", 2, {kGathered[0], kGathered[1], kMeans}},
                    Layout{"cp2_indexed", 2, {"parallel.cp=2", kIndexed}},
                    Layout{"ring_indexed", 2, {kRing[0], kRing[1], kIndexed}},
                    Layout{"gather_indexed", 2, {kGathered[0], kGathered[1], kIndexed, kPacked}},
                    Layout{"ring_places", 2, {kRing[0], kRing[1], kPlaces}}, Layout{"cp2", 2, {"parallel.cp=2"}},
                    Layout{"cp4", 4, {"parallel.cp=4"}},
                    Layout{"cp2_packed", 2, {"parallel.cp=2", "data.packing.documents=true"}},
                    Layout{"zero3", 2, {"parallel.zero=3"}},
                    Layout{"tp2_zero3", 4, {"parallel.tp=2", "parallel.zero=3"}},
                    Layout{"tp2_packed", 2, {"parallel.tp=2", "data.packing.documents=true"}}),
    [](const auto& info) { return info.param.name; });

TEST_P(DistPools, EqualsOneProcess) { expect_equal_to_one_process(GetParam(), pools_options); }

// One KV head cannot be divided, so auto chooses the ring.
TEST(DistPoolsRing, OneHeadEqualsOneProcess) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  expect_equal_to_one_process({"one_head", 2, {"parallel.cp=2"}}, [](int ranks, const Overrides& more) {
    TrainingOptions o = pools_options(ranks, more);
    o.overrides.emplace_back("model.kv_heads=1");
    return o;
  });
}

// Sanity check of the comparisons above: without pools the model is a different one.
TEST(PoolTraining, DependsOnPools) {
  const Training a = train_on_ranks(pools_options(1, {})),
                 b = train_on_ranks(pools_options(
                     1, {"model.attention={kind: window, window: 6, pools: [], pooling: mean, pool_gates: false}"}));
  ASSERT_EQ(a.errors + b.errors, "");
  EXPECT_GT(largest_difference(a, b), 10 * kWeights);
}

// Sanity check: all weights and gates of pools change.
TEST(PoolTraining, LearnsWeightsAndGates) {
  const Training a = train_on_ranks(pools_options(1, {})), b = train_on_ranks(pools_options(1, {"optimizer.lr=1e-20"}));
  ASSERT_EQ(a.errors + b.errors, "");
  for (const char* name :
       {"pool.8.positions", "pool.8.query", "pool.50.positions", "pool.50.query", "pool_gate.weight", "pool_gate.bias"})
    EXPECT_GT(largest_difference(a, b, str("model.blocks.0.attention.", name)), 0.1) << name;
}

TEST(PoolTraining, RecomputationGivesTheSameBits) {
  const Training kept = train_on_ranks(pools_options(1, {"train.recompute=none"}));
  for (const char* what : {"attention", "block", "full"}) {
    const Training again = train_on_ranks(pools_options(1, {std::string("train.recompute=") + what}));
    ASSERT_EQ(kept.errors + again.errors, "");
    EXPECT_EQ(again.losses, kept.losses) << what;
    EXPECT_EQ(largest_difference(kept, again), 0) << what;
  }
}

TEST(PoolTraining, ResumesFromACheckpointWithTheSameBits) { expect_resume_is_exact(pools_options, 2, "pools_resume"); }

// Runs steps whose peak memory is in attention, and reports the bytes that each rank's step took and was planned to
// take.
Training with_wide_heads(const Layout& l, const std::string& pools) {
  TrainingOptions o = pools_options(l.ranks, l.overrides);
  for (const std::string& more :
       {std::string("model.head_dim=32"), std::string("model.mlp_width=32"), std::string("train.recompute=none"),
        std::string("model.attention_layers=[]"), "model.attention={kind: window, window: 6, " + pools + "}"})
    o.overrides.push_back(more);
  o.dry = true;
  return train_on_ranks(o);
}

// Memory plans include pools, their gradients and their messages.
TEST(DistPoolMemory, AStepTakesThePlannedMemory) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  for (const Layout& l : {Layout{"one", 1, {}}, Layout{"ring", 2, kRing}, Layout{"gather", 2, kGathered},
                          Layout{"ring4", 4, {"parallel.cp=4", kRing[1], kContiguous}}}) {
    const Training with = with_wide_heads(l, "pools: [2, 3], pooling: learned, pool_gates: true"),
                   without = with_wide_heads(l, "pools: [], pooling: mean, pool_gates: false");
    ASSERT_EQ(with.errors + without.errors, "") << l.name;
    for (std::size_t r = 0; r < with.slabs.size(); ++r) {
      const auto took = static_cast<double>(with.slabs[r]);
      EXPECT_NEAR(static_cast<double>(with.dry_slabs[r]), took, 0.02 * took) << l.name << ", rank " << r;
      EXPECT_GT(took, 1.05 * static_cast<double>(without.slabs[r])) << "pools are not at the peak: " << l.name;
    }
  }
}

}  // namespace
}  // namespace ring::test
