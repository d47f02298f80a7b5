// Models with gated delta nets: training, resuming, memory, and layouts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "model/decoder.h"
#include "parallel/plan.h"
#include "tests/error_of.h"
#include "tests/parallel/one_process.h"
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
  const auto run = [](int steps, const Overrides& more) { return options(steps, more); };
  expect_predicted_memory(run, {"none", "attention", "full"});
}

// Diagnostics of a step report entropies only for the layers with attention.
TEST_F(DistGatedDeltaNet, DiagnosticsSkipLayersWithoutAttention) {
  const Training t = train_on_ranks(options(2, {"train.diagnostics_interval=1"}));
  ASSERT_EQ(t.errors, "");
  ASSERT_FALSE(t.watched.empty());
  EXPECT_EQ(t.watched.back().entropies.size(), 1u);
}

TEST_F(DistGatedDeltaNet, RefusesTensorParallelismThatDoesNotDivideTheKeyHeads) {
  ModelConfig m;
  m.vocab_size = 64, m.context = 64, m.layers = 2, m.width = 64, m.heads = 8, m.tied_embeddings = false;
  m.mixers = {Mixer::gated_delta_net, Mixer::attention};
  m.gated_delta_net = {.key_heads = 2};
  const auto refusal = [&](const ParallelConfig& c, int world) {
    return error_of([&] { make_plan(c, m.resolved(), {24, 1, {}, 0}, world); });
  };
  ParallelConfig tp;
  tp.tp = 4;
  EXPECT_PRED2(contains, refusal(tp, 4), "model.gated_delta_net.key_heads = 2");
  EXPECT_EQ(refusal({}, 2), "");
}

// Compares hybrid models whose sequences are divided among ranks, pipeline slices or chunks with one process.
TrainingOptions divided(int ranks, const Overrides& more) {
  TrainingOptions o;
  o.ranks = ranks;
  o.steps = 4;
  o.overrides = {"model.layers=4",
                 "model.mixers=[gated_delta_net, gated_delta_net, attention]",
                 "model.gated_delta_net={key_heads: 2, value_heads: 4, key_width: 16, value_width: 8}",
                 "model.context=160",
                 "model.heads=8",
                 "model.kv_heads=4",
                 "model.head_dim=8",
                 "model.dropout=0.1",
                 "optimizer.eps=1e-4",
                 "train.batch_size=2",
                 "train.micro_batch=1"};
  o.overrides.insert(o.overrides.end(), more.begin(), more.end());
  o.validate = true;
  return o;
}

const std::string kPacked = "data.packing.documents=true", kFull = "train.recompute=full";

class DistDividedDeltaNets : public LayoutTest {};
INSTANTIATE_TEST_SUITE_P(
    Layouts, DistDividedDeltaNets,
    testing::Values(
        Layout{"cp2_ring", 2, {"parallel.cp=2", "parallel.cp_schedule=ring", "train.micro_batch=2"}},
        Layout{"cp2_gather_contiguous", 2, {"parallel.cp=2", kGather, "parallel.cp_layout=contiguous"}},
        Layout{"cp2_automatic_packed", 2, {"parallel.cp=2", kPacked}},
        Layout{"cp4_all_to_all_packed", 4, {"parallel.cp=4", "parallel.cp_schedule=all_to_all", kPacked}},
        Layout{"cp2_without_attention", 2, {"parallel.cp=2", "model.mixers=[gated_delta_net]", kPacked}},
        Layout{"cp4_hybrid", 4, {"parallel.cp=4", "parallel.cp_schedule=hybrid", "parallel.cp_ranks_per_node=2"}},
        Layout{"cp4_ring_balanced_packed",
               4,
               {"parallel.cp=4", "parallel.cp_schedule=ring", "parallel.cp_layout=balanced", kPacked,
                "train.micro_batch=2"}},
        Layout{"cp2_recompute", 2, {"parallel.cp=2", kGather, kPacked, kFull}},
        Layout{"cp2_recompute_attention", 2, {"parallel.cp=2", kPacked, "train.recompute=attention"}},
        Layout{"cp2_tp2", 4, {"parallel.cp=2", "parallel.tp=2", kPacked}},
        Layout{"cp2_zero3", 4, {"parallel.cp=2", "parallel.dp=2", "parallel.zero=3"}},
        Layout{"cp2_pp2", 4, {"parallel.cp=2", "parallel.pp=2", kPacked}},
        Layout{"pp2_slices4", 2, {"parallel.pp=2", "parallel.pp_slices=4"}},
        Layout{"pp2_slices3_packed_recompute", 2, {"parallel.pp=2", "parallel.pp_slices=3", kPacked, kFull}},
        Layout{"pp2_slices2_cp2", 4, {"parallel.pp=2", "parallel.pp_slices=2", "parallel.cp=2", kPacked}},
        Layout{"pp2_slices2_tp2", 4, {"parallel.pp=2", "parallel.pp_slices=2", "parallel.tp=2"}}),
    [](const auto& info) { return info.param.name; });

TEST_P(DistDividedDeltaNets, EqualOneProcess) { expect_equal_to_one_process(GetParam(), divided); }

// 50 does not divide the length of a sequence, so the last chunk is shorter.
TEST_F(DistGatedDeltaNet, ChunksOfSequencesEqualWholeSequences) {
  for (const Overrides& more : {Overrides{}, {kPacked}}) {
    const Training whole = train_on_ranks(divided(1, more));
    for (const auto& [ranks, layout] :
         std::vector<std::pair<int, Overrides>>{{1, {"train.sequence_chunk=64"}},
                                                {1, {"train.sequence_chunk=50", kFull}},
                                                {1, {"train.sequence_chunk=50", "train.activation_offload=true"}},
                                                {2, {"train.sequence_chunk=80", "parallel.cp=2"}},
                                                {2, {"train.sequence_chunk=80", "parallel.tp=2"}},
                                                {2, {"train.sequence_chunk=64", "parallel.zero=3", "parallel.dp=2"}}}) {
      SCOPED_TRACE(str(layout[0], " ", layout.back(), " ", more.size()));
      Overrides all = layout;
      all.insert(all.end(), more.begin(), more.end());
      const Training chunks = train_on_ranks(divided(ranks, all));
      ASSERT_EQ(whole.errors + chunks.errors, "");
      EXPECT_LE(largest_loss_difference(whole, chunks), kLoss);
      EXPECT_LE(largest_difference(whole, chunks), kWeights);
      EXPECT_LE(std::abs(whole.validation - chunks.validation), kLoss * whole.validation);
    }
  }
}

TEST_F(DistGatedDeltaNet, ResumesDividedSequencesBitForBit) {
  for (const auto& [ranks, layout] :
       std::vector<std::pair<int, Overrides>>{{2, {"parallel.cp=2", kPacked}},
                                              {1, {"train.sequence_chunk=50", kPacked}},
                                              {2, {"parallel.pp=2", "parallel.pp_slices=2"}}}) {
    SCOPED_TRACE(layout[0]);
    const auto options = [&](int, const Overrides&) { return divided(ranks, layout); };
    expect_resume_is_exact(options, 2, "delta_divided");
  }
}

TEST_F(DistGatedDeltaNet, StepsOfDividedSequencesTakeTheMemoryThatWasPredicted) {
  for (const auto& [ranks, layout] :
       std::vector<std::pair<int, Overrides>>{{2, {"parallel.cp=2", "train.recompute=none"}},
                                              {2, {"parallel.cp=2", kFull}},
                                              {1, {"train.sequence_chunk=64", "train.recompute=none"}}}) {
    TrainingOptions o = divided(ranks, layout);
    o.dry = true;
    const Training t = train_on_ranks(o);
    ASSERT_EQ(t.errors, "") << layout[0];
    for (std::size_t rank = 0; rank < t.slabs.size(); ++rank) {
      const auto took = static_cast<double>(t.slabs[rank]);
      EXPECT_GT(took, 0) << "no two steps took the same";
      EXPECT_NEAR(static_cast<double>(t.dry_slabs[rank]), took, 0.02 * took) << layout[0];
    }
  }
}

}  // namespace
}  // namespace ring::test
