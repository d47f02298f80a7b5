// Models with gated delta nets: training, resuming, memory, and layouts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "model/decoder.h"
#include "parallel/plan.h"
#include "tests/error_of.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

class DistGatedDeltaNet : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }
  static TrainingOptions options(int steps, std::vector<std::string> more = {}, int ranks = 1) {
    TrainingOptions o;
    o.steps = steps, o.ranks = ranks;
    o.overrides = {"model.mixers=[gated_delta_net, attention]",
                   "model.gated_delta_net={key_heads: 2, value_heads: 4, key_width: 16, value_width: 8}",
                   "optimizer.eps=1e-4"};
    o.overrides.insert(o.overrides.end(), more.begin(), more.end());
    return o;
  }
  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("ringmaster-delta-" + std::to_string(getpid()))).string();
};

TEST_F(DistGatedDeltaNet, TrainsAndResumes) {
  const Training whole = train_on_ranks(options(6));
  ASSERT_EQ(whole.errors, "");
  EXPECT_LT(whole.losses.back(), whole.losses.front() - 0.05);
  for (const char* name : {"wq.weight", "conv_v", "wb.weight", "log_decay", "dt_bias", "wz.weight", "norm.weight"})
    EXPECT_TRUE(whole.tensors.contains(std::string("model.blocks.0.gated_delta_net.") + name)) << name;
  TrainingOptions half = options(3);
  half.save = folder_;
  const Training first = train_on_ranks(half);
  ASSERT_EQ(first.errors, "");
  TrainingOptions rest = options(3);
  rest.load = first.checkpoint;
  const Training second = train_on_ranks(rest);
  ASSERT_EQ(second.errors, "");
  EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
  EXPECT_EQ(second.tensors, whole.tensors);
}

TEST_F(DistGatedDeltaNet, EveryLayoutComputesWhatOneProcessDoes) {
  const Training alone = train_on_ranks(options(3));
  ASSERT_EQ(alone.errors, "");
  for (const auto& [ranks, layout] :
       std::vector<std::pair<int, std::vector<std::string>>>{{2, {"parallel.dp=2", "train.micro_batch=2"}},
                                                             {2, {"parallel.zero=3", "train.micro_batch=2"}},
                                                             {2, {"parallel.tp=2"}},
                                                             {2, {"parallel.pp=2"}},
                                                             {1, {"train.recompute=full"}}}) {
    const Training two = train_on_ranks(options(3, layout, ranks));
    ASSERT_EQ(two.errors, "") << layout[0];
    EXPECT_LT(largest_difference(alone, two), 1e-4) << layout[0];
    EXPECT_LT(largest_loss_difference(alone, two), 1e-5) << layout[0];
  }
}

TEST_F(DistGatedDeltaNet, StepsTakeTheMemoryThatWasPredicted) {
  for (const char* recompute : {"none", "attention", "full"}) {
    TrainingOptions o = options(3, {str("train.recompute=", recompute)});
    o.dry = true;
    const Training t = train_on_ranks(o);
    ASSERT_EQ(t.errors, "") << recompute;
    const auto took = static_cast<double>(t.slabs.at(0));
    EXPECT_GT(took, 0) << "no two steps took the same";
    EXPECT_NEAR(static_cast<double>(t.dry_slabs.at(0)), took, 0.02 * took) << recompute;
  }
}

// Diagnostics of a step report entropies only for the layers with attention.
TEST_F(DistGatedDeltaNet, DiagnosticsSkipLayersWithoutAttention) {
  const Training t = train_on_ranks(options(2, {"train.diagnostics_interval=1"}));
  ASSERT_EQ(t.errors, "");
  ASSERT_FALSE(t.watched.empty());
  EXPECT_EQ(t.watched.back().entropies.size(), 1u);
}

TEST_F(DistGatedDeltaNet, RefusesLayoutsThatDivideSequences) {
  ModelConfig m;
  m.vocab_size = 64, m.context = 64, m.layers = 2, m.width = 64, m.heads = 8, m.tied_embeddings = false;
  m.mixers = {Mixer::gated_delta_net, Mixer::attention};
  m.gated_delta_net = {.key_heads = 2};
  const auto refusal = [&](const ParallelConfig& c, int world, std::int64_t sequence_chunk = 0) {
    return error_of([&] { make_plan(c, m.resolved(), {24, 1, {}, sequence_chunk}, world); });
  };
  ParallelConfig cp, slices, tp;
  cp.cp = 2, tp.tp = 4;
  slices.pp = 2, slices.pp_slices = 2;
  EXPECT_PRED2(contains, refusal(cp, 2), "parallel.cp: 2 divides sequences");
  EXPECT_PRED2(contains, refusal(slices, 2), "parallel.pp_slices: 2 divides sequences");
  EXPECT_PRED2(contains, refusal({}, 1, 32), "train.sequence_chunk: 32 divides sequences");
  EXPECT_PRED2(contains, refusal(tp, 4), "model.gated_delta_net.key_heads = 2");
  EXPECT_EQ(refusal({}, 2), "");
}

}  // namespace
}  // namespace ring::test
