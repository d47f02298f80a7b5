// Pipeline stages on several ranks against one process.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <tuple>
#include <utility>

#include "comm/gloo/gloo.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;
using Overrides = std::vector<std::string>;

// clip=0: the norm of the gradient, which is summed over the stages, would round the factor of clipping differently.
const Overrides kModel = {"model.layers=4", "model.dropout=0.1", "train.micro_batch=1", "optimizer.clip=0",
                          "optimizer.eps=1e-4"};

TrainingOptions options_of(int ranks, const Overrides& layout, int steps = 4, const Overrides& model = kModel) {
  TrainingOptions o;
  o.ranks = ranks;
  o.steps = steps;
  o.overrides = model;
  o.overrides.insert(o.overrides.end(), layout.begin(), layout.end());
  o.verify_order = true;
  return o;
}

Training trained(int ranks, const Overrides& layout, const Overrides& model = kModel) {
  TrainingOptions o = options_of(ranks, layout, 4, model);
  o.validate = o.score = true;
  return train_on_ranks(o);
}

class DistPipeline : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

// Losses, weights, moments and scores of stages have the bits of one process; norms are summed in a different order.
TEST_F(DistPipeline, StagesHaveTheBitsOfOneProcess) {
  const Training one = trained(1, {});
  ASSERT_EQ(one.errors, "");
  EXPECT_LT(one.losses.back(), one.losses.front());
  const std::pair<int, Overrides> layouts[] = {{2, {"parallel.pp=2"}},
                                               {4, {"parallel.pp=4"}},
                                               {4, {"parallel.pp=4", "parallel.pp_order=eager_1f1b"}},
                                               {2, {"parallel.pp=2", "parallel.pp_parts=2"}},
                                               {2, {"parallel.pp=2", "parallel.pp_division=[3,1]"}}};
  for (const auto& [ranks, layout] : layouts) {
    const Training stages = trained(ranks, layout);
    ASSERT_EQ(stages.errors, "") << layout.back();
    EXPECT_TRUE(same_bits(one, stages)) << layout.back();
    EXPECT_EQ(one.validation, stages.validation) << layout.back();
    EXPECT_EQ(one.accuracy, stages.accuracy) << layout.back();
    EXPECT_EQ(one.scores, stages.scores) << layout.back();
    for (std::size_t i = 0; i < one.norms.size(); ++i) EXPECT_NEAR(one.norms[i], stages.norms[i], 1e-5 * one.norms[i]);
  }
}

// Every layout inside the stages changes nothing but the rounding of the layout itself.
TEST_F(DistPipeline, StagesHaveTheBitsOfTheSameLayoutWithoutStages) {
  const char *const one_part = "parallel.pp_parts=1", *const two_parts = "parallel.pp_parts=2";
  const std::tuple<Overrides, const char*> layouts[] = {
      {{"parallel.dp=2", "parallel.zero=1", "train.ema=0.9"}, one_part},
      {{"parallel.dp=2", "parallel.zero=0", "parallel.reduce=bf16"}, two_parts},
      {{"parallel.dp=2", "parallel.zero=2", "train.ema=0.9", "train.recompute=block"}, two_parts},
      {{"parallel.dp=2", "parallel.zero=3", "train.recompute=mlp"}, two_parts},
      {{"parallel.tp=2", "train.recompute=block"}, one_part},
      {{"parallel.cp=2", "data.packing.documents=true"}, two_parts}};
  for (const auto& [layout, parts] : layouts) {
    TrainingOptions o = options_of(2, layout, 2);
    o.validate = true;
    const Training plain = train_on_ranks(o);
    ASSERT_EQ(plain.errors, "") << layout.front();
    o.ranks = 4;
    o.overrides.insert(o.overrides.end(), {"parallel.pp=2", parts});
    const Training stages = train_on_ranks(o);
    ASSERT_EQ(stages.errors, "") << layout.front();
    EXPECT_TRUE(same_bits(plain, stages)) << layout.front();
    EXPECT_EQ(plain.validation, stages.validation) << layout.front();
    EXPECT_EQ(plain.average_validation, stages.average_validation) << layout.front();
  }
}

// Other architectures of blocks, with clipping, Muon and logged norms: equal to rounding.
TEST_F(DistPipeline, OtherModelsTrainAsInOneProcess) {
  const Overrides models[] = {
      {"model.layers=3", "train.micro_batch=2", "model.positions=learned", "model.biases=all", "model.norm=layer",
       "model.mlp=gelu_tanh", "train.mlp_chunk=20", "optimizer.clip=0.05", "train.log_interval=2"},
      {"model.layers=5", "train.micro_batch=2", "model.norm_place=post", "model.qk_norm=true", "train.recompute=mlp",
       "model.learned_sinks=true", "optimizer.kind=muon", "optimizer.groups=[{match: [embedding.*], frozen: true}]"}};
  for (const Overrides& model : models) {
    const Training one = trained(1, {}, model);
    ASSERT_EQ(one.errors, "") << model.back();
    const Training stages = trained(2, {"parallel.pp=2"}, model);
    ASSERT_EQ(stages.errors, "") << model.back();
    EXPECT_LT(largest_loss_difference(one, stages), 1e-5) << model.back();
    EXPECT_LT(largest_difference(one, stages), 1e-4) << model.back();
    EXPECT_NEAR(one.validation, stages.validation, 1e-5);
    ASSERT_EQ(one.part_norms.size(), stages.part_norms.size());
    for (std::size_t step = 0; step < one.part_norms.size(); ++step) {
      ASSERT_EQ(one.part_norms[step].size(), stages.part_norms[step].size());
      for (std::size_t i = 0; i < one.part_norms[step].size(); ++i)
        EXPECT_NEAR(one.part_norms[step][i], stages.part_norms[step][i], 1e-4 * one.part_norms[step][i] + 1e-9);
    }
  }
}

// A kind of attention over a sequence of 32 tokens that is divided into slices. The cases include packed documents,
// attention dropout and long-range patterns.
struct SliceCase {
  std::string name;
  Overrides overrides;
};
void PrintTo(const SliceCase& c, std::ostream* out) { *out << c.name; }

Overrides in_slices(const SliceCase& c, const Overrides& more) {
  Overrides all = more;
  all.insert(all.end(), c.overrides.begin(), c.overrides.end());
  return all;
}

class DistSlices : public testing::TestWithParam<SliceCase> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(
    Kinds, DistSlices,
    testing::Values(SliceCase{"dense", {"model.attention_dropout=0.2", "train.recompute=full"}},
                    SliceCase{"packed",
                              {"data.packing.documents=true", "model.positions=learned", "train.recompute=none"}},
                    SliceCase{"window",
                              {"model.attention.kind=window", "model.attention.window=11", "model.attention.sinks=1",
                               "train.recompute=attention"}},
                    SliceCase{"dilated",
                              {"model.attention.kind=dilated", "model.attention.segments=[4,16,32]",
                               "model.attention.rates=[1,2,4]", "train.recompute=block"}}),
    [](const auto& info) { return info.param.name; });

// With slices and stages, results are bit-identical to those with chunks of the same length in one process. Losses
// equal those of undivided sequences up to rounding.
TEST_P(DistSlices, HaveTheBitsOfChunksAndTheLossesOfWholeSequences) {
  const Training whole = trained(1, in_slices(GetParam(), {})),
                 chunks = trained(1, in_slices(GetParam(), {"train.sequence_chunk=8"})),
                 slices = trained(2, in_slices(GetParam(), {"parallel.pp=2", "parallel.pp_slices=4"}));
  ASSERT_EQ(whole.errors, "");
  ASSERT_EQ(chunks.errors, "");
  ASSERT_EQ(slices.errors, "");
  EXPECT_TRUE(same_bits(chunks, slices));
  EXPECT_EQ(chunks.validation, slices.validation);
  EXPECT_EQ(chunks.scores, slices.scores);
  EXPECT_LT(largest_loss_difference(whole, slices), 2e-6);
  EXPECT_LT(largest_difference(whole, slices), 1e-3);
  EXPECT_NE(whole.losses, slices.losses) << "rounding does not differ, so no sequence was sliced";
}

// Fewer slices than stages, slices of different lengths, and layouts inside the stages: results are bit-identical to
// those with chunks in the same layout without stages.
TEST_F(DistPipeline, SlicesHaveTheBitsOfChunksInEveryLayout) {
  struct Case {
    int stages, slices, chunk;
    const char* order;
    Overrides inside;  // layout of the two ranks of each stage; empty if a stage has one rank
  };
  const Case cases[] = {{4, 2, 16, "1f1b", {}},
                        {2, 5, 7, "eager_1f1b", {}},
                        {2, 4, 8, "eager_1f1b", {"parallel.dp=2", "parallel.zero=2"}},
                        {2, 4, 8, "1f1b", {"parallel.tp=2", "train.batch_size=1"}},
                        {2, 4, 8, "1f1b", {"parallel.cp=2", "train.batch_size=2"}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(str(c.stages, " stages, ", c.slices, " slices, ", c.inside.empty() ? "" : c.inside[0]));
    const int ranks = c.inside.empty() ? 1 : 2;
    Overrides chunks = {str("model.layers=", c.stages), "train.batch_size=4"};
    chunks.insert(chunks.end(), c.inside.begin(), c.inside.end());
    Overrides slices = chunks;
    chunks.push_back(str("train.sequence_chunk=", c.chunk));
    slices.insert(slices.end(), {str("parallel.pp=", c.stages), str("parallel.pp_slices=", c.slices),
                                 str("parallel.pp_order=", c.order)});
    const Training one = train_on_ranks(options_of(ranks, chunks, 1)),
                   stages = train_on_ranks(options_of(ranks * c.stages, slices, 1));
    ASSERT_EQ(one.errors, "");
    ASSERT_EQ(stages.errors, "");
    EXPECT_TRUE(same_bits(one, stages));
  }
}

class Folder {
 public:
  explicit Folder(const char* name) : path_(fs::temp_directory_path() / str("ring_pipeline_", name, "_", ::getpid())) {
    fs::remove_all(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

// A run that changes its layout agrees with a run in one process: bit for bit, except with dp 2 or slices.
TEST_F(DistPipeline, CheckpointsContinueWithAnyNumberOfStages) {
  const Training whole = train_on_ranks(options_of(1, {}, 12));
  ASSERT_EQ(whole.errors, "");
  const std::pair<int, Overrides> layouts[] = {{2, {"parallel.pp=2"}},
                                               {4, {"parallel.pp=2", "parallel.dp=2", "parallel.zero=1"}},
                                               {1, {}},
                                               {4, {"parallel.pp=2", "parallel.dp=2", "parallel.zero=3"}},
                                               {2, {"parallel.pp=2", "parallel.pp_slices=4"}},
                                               {4, {"parallel.pp=4"}}};
  const Folder folder("reshard");
  Training part;
  for (const auto& [ranks, layout] : layouts) {
    TrainingOptions o = options_of(ranks, layout, 2);
    o.load = part.checkpoint;
    o.save = folder.path();
    part = train_on_ranks(o);
    ASSERT_EQ(part.errors, "");
  }
  EXPECT_LT(largest_difference(whole, part, ""), 1e-5);
  EXPECT_NEAR(whole.losses.back(), part.losses.back(), 1e-6);
}

TEST_F(DistPipeline, AResumedRunHasTheBitsOfOneThatWasNotStopped) {
  const Overrides layout = {"parallel.pp=2", "parallel.pp_parts=2", "parallel.dp=2", "parallel.zero=1",
                            "optimizer.clip=1"};
  const Training whole = train_on_ranks(options_of(4, layout, 4));
  ASSERT_EQ(whole.errors, "");
  const Folder folder("resume");
  TrainingOptions o = options_of(4, layout, 2);
  o.save = folder.path();
  const Training first = train_on_ranks(o);
  ASSERT_EQ(first.errors, "");
  o.load = first.checkpoint;
  const Training second = train_on_ranks(o);
  ASSERT_EQ(second.errors, "");
  EXPECT_EQ(whole.tensors, second.tensors);
  EXPECT_EQ(whole.losses.back(), second.losses.back());
}

// With slices, a stage holds only parts of the sequences in flight. Dry steps predict this memory.
TEST_F(DistPipeline, SlicesTakeThePredictedMemoryWhichIsLess) {
  const auto run = [](const char* slices) {
    TrainingOptions o = options_of(4, {"parallel.pp=4", "model.context=128", "train.batch_size=4", slices}, 3);
    o.dry = true;
    return train_on_ranks(o);
  };
  const Training whole = run("parallel.pp_slices=1"), slices = run("parallel.pp_slices=4");
  ASSERT_EQ(whole.errors, "");
  ASSERT_EQ(slices.errors, "");
  for (std::size_t r = 0; r < 4; ++r) {
    const auto predicted = static_cast<double>(slices.dry_slabs[r]), real = static_cast<double>(slices.slabs[r]);
    EXPECT_GT(real, 0);
    EXPECT_NEAR(predicted, real, 0.05 * real) << "stage " << r;
    const auto stored = static_cast<double>(slices.unplanned[r]);
    EXPECT_NEAR(static_cast<double>(slices.dry_unplanned[r]), stored, 0.05 * stored) << "stage " << r;
    EXPECT_GT(slices.unplanned[r], whole.unplanned[r]) << "keys and values of earlier slices are stored, stage " << r;
  }
  // The first of four stages holds 4 whole sequences, or 7 slices, each a quarter of a sequence.
  EXPECT_LT(static_cast<double>(slices.slabs[0]), 0.6 * static_cast<double>(whole.slabs[0]));
}

// Every stage holds about its share of the state, and dry steps predict the memory of each.
TEST_F(DistPipeline, StagesHoldTheirShareAndTakeThePredictedMemory) {
  TrainingOptions o = options_of(4, {"parallel.pp=4", "model.layers=8", "parallel.pp_order=eager_1f1b"}, 4);
  o.dry = true;
  const Training stages = train_on_ranks(o);
  ASSERT_EQ(stages.errors, "");
  const Training one = train_on_ranks(options_of(1, {"model.layers=8"}, 1));
  std::uint64_t all = 0;
  for (const std::uint64_t bytes : stages.state_bytes) {
    EXPECT_LT(bytes, one.state_bytes[0] / 2);
    all += bytes;
  }
  EXPECT_EQ(all, one.state_bytes[0]);
  for (std::size_t r = 0; r < 4; ++r) {
    const auto predicted = static_cast<double>(stages.dry_slabs[r]), real = static_cast<double>(stages.slabs[r]);
    EXPECT_GT(real, 0);
    EXPECT_NEAR(predicted, real, 0.05 * real) << "stage " << r;
  }
  EXPECT_GT(stages.slabs[0], stages.slabs[2]) << "the first stage holds the most micro-batches";
}

// Huge weights in one stage make only the loss of the last one infinite or NaN. Every rank rejects the step and names
// the same tensor.
TEST_F(DistPipeline, AStepThatIsNotFiniteInOneStageIsRejectedInAll) {
  const std::pair<const char*, const char*> cases[] = {{"blocks.0.*", "parallel.pp_slices=1"},
                                                       {"blocks.3.*", "parallel.pp_slices=1"},
                                                       {"blocks.3.*", "parallel.pp_slices=2"}};
  for (const auto& [damaged, slices] : cases) {
    const Training t = train_on_ranks(
        options_of(2, {"parallel.pp=2", slices, str("optimizer.groups=[{match: ['", damaged, "'], lr: 1e30}]")}, 8));
    const std::size_t first = t.errors.find("rank 0: "), second = t.errors.find("rank 1: ");
    ASSERT_NE(first, std::string::npos) << t.errors;
    ASSERT_NE(second, std::string::npos) << t.errors;
    EXPECT_NE(t.errors.find("is not finite: step "), std::string::npos) << t.errors;
    EXPECT_EQ(t.errors.substr(first + 8, second - first - 8), t.errors.substr(second + 8));
  }
}

TEST_F(DistPipeline, LayoutsThatStagesCannotHaveAreRefused) {
  const std::pair<Overrides, const char*> refused[] = {
      {{"parallel.pp_division=[4]"}, "has 1 number, but parallel.pp: 2 makes 2 parts"},
      {{"model.tied_embeddings=true"}, "Set model.tied_embeddings: false"},
      {{"model.layers=1"}, "parallel.pp: 2 makes 2 parts of at least one block each, but model.layers is 1"},
      {{"parallel.pp_parts=2", "train.micro_batch=8"}, "need a multiple of 2 micro-batches"},
      {{"parallel.pp_order=interleaved"}, "Set parallel.pp_parts: 2 or more"},
      {{"parallel.pp_order=1f1b", "parallel.pp_parts=2"}, "Set parallel.pp_parts: 1, or parallel.pp_order"},
      {{"parallel.pp_order=eager_1f1b", "parallel.pp_parts=2"}, "eager_1f1b runs one part of the model in each stage"},
      {{"train.sequence_chunk=16"}, "train.sequence_chunk, which is 16. Set it to 0"},
      {{"parallel.pp_slices=2", "train.micro_batch=2"}, "train.micro_batch is 2. Set it to 1"},
      {{"parallel.pp_slices=2", "parallel.pp_parts=2"}, "parallel.pp_parts is 2. Set one of the two to 1"},
      {{"parallel.pp_slices=33"}, "more than the 32 tokens of a sequence"},
      {{"parallel.pp_slices=32", "parallel.tp=2", "parallel.pp=1"}, "parallel.pp is 1. Set parallel.pp_slices: 1"},
      {{"parallel.pp_slices=2", "model.attention.kind=window", "model.attention.window=8", "model.attention.pools=[4]"},
       "nor model.attention.pools"},
      {{"parallel.dp=2"}, "needs 4 processes, but 2 were started"}};
  for (const auto& [settings, text] : refused) {
    Overrides all = {"parallel.pp=2"};
    all.insert(all.end(), settings.begin(), settings.end());
    const Training t = train_on_ranks(options_of(2, all, 1));
    EXPECT_NE(t.errors.find(text), std::string::npos) << settings[0] << ": " << t.errors;
  }
}

}  // namespace
}  // namespace ring::test
