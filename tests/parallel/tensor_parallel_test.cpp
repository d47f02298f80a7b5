// Tensor parallelism with sequence parallelism: the trainer on 2 and 4 ranks against one process.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "comm/gloo/gloo.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

using Overrides = std::vector<std::string>;

// Bounds for any degree. Gradients (first moments after one step) and weights after twenty steps are relative to the
// largest element of their tensor. A weight whose gradient is near zero moves by lr times a ratio of two small numbers,
// in which AdamW amplifies rounding errors.
constexpr double kTensorLoss = 2e-6, kNorm = 2e-6, kGradient = 1e-5, kTensorWeights = 1e-3;

struct TensorCase {
  std::string name;
  Overrides model;
  std::vector<int> degrees{2, 4};
};
void PrintTo(const TensorCase& c, std::ostream* out) { *out << c.name; }

Overrides joined(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
const Overrides kAllHeads = {"model.kv_heads=4"};
const Overrides kGpt2 = {"model.kv_heads=4",    "model.norm=layer",    "model.positions=learned",   "model.biases=all",
                         "model.mlp=gelu_tanh", "model.mlp_width=128", "model.tied_embeddings=true"};
const Overrides kLong = {"model.kv_heads=4", "model.context=256", "train.batch_size=2", "train.micro_batch=1"};

// With AdamW's usual epsilon, a gradient of pure rounding errors would move a weight as far as any other.
Training train(const Overrides& overrides, int tp, int steps, int dp = 1) {
  TrainingOptions options;
  options.ranks = tp * dp;
  options.steps = steps;
  options.validate = steps > 1;
  options.overrides = joined(
      overrides, {"optimizer.eps=1e-6", "parallel.tp=" + std::to_string(tp), "parallel.dp=" + std::to_string(dp)});
  return train_on_ranks(options);
}

double relative(double a, double b) {
  return std::isfinite(a) && std::isfinite(b) ? std::abs(a - b) / std::abs(a) : INFINITY;
}

// Removes key biases that are not rotated. They add the same number to all scores of a query, which softmax ignores:
// their gradients are pure rounding errors.
Training without_unseen(Training t, const TensorCase& c) {
  const bool rotated = std::find(c.model.begin(), c.model.end(), "model.positions=learned") == c.model.end();
  std::erase_if(t.tensors, [&](const auto& item) { return !rotated && item.first.ends_with("wk.bias"); });
  return t;
}

class DistTensorParallel : public testing::TestWithParam<TensorCase> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

TEST_P(DistTensorParallel, EveryGradientOfAStepEqualsOneProcess) {
  const Training one = without_unseen(train(GetParam().model, 1, 1), GetParam());
  ASSERT_EQ(one.errors, "");
  for (const int tp : GetParam().degrees) {
    SCOPED_TRACE(tp);
    const Training many = without_unseen(train(GetParam().model, tp, 1), GetParam());
    ASSERT_EQ(many.errors, "");
    EXPECT_LT(relative(one.norms[0], many.norms[0]), kNorm);
    EXPECT_LT(largest_loss_difference(one, many), kTensorLoss);
    EXPECT_LT(largest_difference(one, many, "optimizer.m."), kGradient);
  }
}

TEST_P(DistTensorParallel, TwentyStepsEqualOneProcess) {
  const Training one = without_unseen(train(GetParam().model, 1, 20), GetParam());
  ASSERT_EQ(one.errors, "");
  EXPECT_LT(one.losses.back(), one.losses.front());
  const Training many = without_unseen(train(GetParam().model, GetParam().degrees.back(), 20), GetParam());
  ASSERT_EQ(many.errors, "");
  EXPECT_LT(largest_loss_difference(one, many), kTensorLoss);
  EXPECT_LT(relative(one.validation, many.validation), kTensorLoss);
  EXPECT_LT(largest_difference(one, many), kTensorWeights);
}

INSTANTIATE_TEST_SUITE_P(
    Models, DistTensorParallel,
    testing::Values(
        TensorCase{
            "llama",
            {"model.attention_dropout=0.3", "model.dropout=0.1", "train.z_loss=0.001", "train.loss_chunk_bytes=4000"},
            {2}},
        TensorCase{"gpt2", joined(kGpt2, {"model.dropout=0.1", "model.attention_dropout=0.1"})},
        TensorCase{"qwen",
                   {"model.kv_heads=4", "model.biases=qkv", "model.qk_norm=true", "model.tied_embeddings=true",
                    "train.recompute=block", "model.dropout=0.1", "train.mlp_chunk=50"}},
        TensorCase{"gemma",
                   {"model.norm_place=sandwich", "model.norm_zero_centered=true", "model.mlp=geglu_tanh",
                    "model.qk_norm=true", "model.embedding_scale=4", "model.attention_soft_cap=5",
                    "model.learned_sinks=true", "model.logit_soft_cap=4", "model.rope.partial_rotary_factor=0.5"},
                   {2}},
        TensorCase{
            "output_gate",
            {"model.attention_output_gate=true", "model.qk_norm=true", "model.biases=qkv", "train.recompute=attention"},
            {2}},
        TensorCase{"post_norm",
                   {"model.kv_heads=4", "model.norm_place=post", "model.norm=layer", "model.biases=all",
                    "model.mlp=relu2", "train.recompute=mlp"}},
        TensorCase{"magneto",
                   {"model.kv_heads=4", "model.norm_place=sub", "model.norm=layer", "model.biases=all",
                    "model.mlp=gelu", "model.mlp_width=128", "model.init=magneto", "model.dropout=0.1",
                    "train.recompute=block", "train.mlp_chunk=40"}},
        TensorCase{"sub_rms", {"model.norm_place=sub", "model.init=magneto"}, {2}},
        TensorCase{"packed", {"data.packing.documents=true", "model.attention_dropout=0.5"}, {2}},
        TensorCase{"window", joined(kAllHeads, {"model.attention.kind=window", "model.attention.window=9",
                                                "model.attention.sinks=2"})},
        TensorCase{"dilated", joined(kAllHeads, {"model.attention.kind=dilated", "model.attention.segments=[8, 16, 64]",
                                                 "model.attention.rates=[1, 2, 4]"})},
        TensorCase{"blocks", joined(kLong, {"model.attention.kind=block_sparse", "model.attention.block=64",
                                            "model.attention.rules=[{pattern: random, density: 0.4, seed: 3}, "
                                            "{pattern: strided, every: 2}]",
                                            "model.attention.heads=[0, 0, 1, 0]"})}),
    [](const auto& info) { return info.param.name; });

class DistTensorParallelRun : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

TEST_F(DistTensorParallelRun, TheSameLayoutGivesTheSameBits) {
  const Overrides model = joined(kGpt2, {"model.dropout=0.1"});
  const Training a = train(model, 4, 5);
  ASSERT_EQ(a.errors, "");
  EXPECT_TRUE(same_bits(a, train(model, 4, 5)));
}

TEST_F(DistTensorParallelRun, RecomputingDoesNotChangeBits) {
  const Training plain = train({"model.attention_dropout=0.2"}, 2, 3);
  ASSERT_EQ(plain.errors, "");
  for (const char* kind : {"mlp", "block"})
    EXPECT_TRUE(same_bits(plain, train({"model.attention_dropout=0.2", std::string("train.recompute=") + kind}, 2, 3)))
        << kind;
}

TEST_F(DistTensorParallelRun, ReplicasEqualOneProcess) {
  const Training one = train({"train.micro_batch=2"}, 1, 5), four = train({"train.micro_batch=2"}, 2, 5, 2);
  ASSERT_EQ(one.errors + four.errors, "");
  EXPECT_LT(largest_loss_difference(one, four), kTensorLoss);
  EXPECT_LT(largest_difference(one, four), kTensorWeights);
  const Training replicas = train({"train.micro_batch=2"}, 1, 5, 2);  // validates as many windows
  EXPECT_LT(relative(replicas.validation, four.validation), kTensorLoss);
}

// The vocabulary is padded, and slices are sharded.
TEST_F(DistTensorParallelRun, ShardedStatesEqualOneProcess) {
  const Overrides model = {"train.micro_batch=2", "model.vocab_size=301", "model.dropout=0.1"};
  const Training one = train(model, 1, 3);
  ASSERT_EQ(one.errors, "");
  for (const char* zero : {"1", "2", "3"}) {
    const Training four = train(joined(model, {std::string("parallel.zero=") + zero}), 2, 3, 2);
    ASSERT_EQ(four.errors, "") << zero;
    EXPECT_LT(largest_loss_difference(one, four), kTensorLoss) << zero;
    EXPECT_LT(largest_difference(one, four), kTensorWeights) << zero;
  }
}

TEST_F(DistTensorParallelRun, AllRanksRunCollectivesInOneOrder) {
  TrainingOptions options;
  options.ranks = 4;
  options.verify_order = true;
  options.overrides = joined(kGpt2, {"parallel.tp=2"});
  EXPECT_EQ(train_on_ranks(options).errors, "");
}

TEST_F(DistTensorParallelRun, EachRankHoldsItsShare) {
  const Training one = train({}, 1, 1), two = train({}, 2, 1);
  ASSERT_EQ(one.errors + two.errors, "");
  for (const std::uint64_t bytes : two.state_bytes)
    EXPECT_LT(static_cast<double>(bytes), 0.51 * static_cast<double>(one.state_bytes[0]));
}

TEST_F(DistTensorParallelRun, CheckpointsLoadOnOtherDegrees) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("ringmaster-tensor-parallel-" + std::to_string(getpid()));
  for (const auto& [from, to] : {std::pair{2, 1}, {1, 2}, {4, 2}}) {
    TrainingOptions options;
    options.ranks = from;
    options.steps = 3;
    options.save = (folder / std::to_string(from)).string();
    options.overrides = joined(kGpt2, {"parallel.tp=" + std::to_string(from)});
    const Training saved = train_on_ranks(options);
    ASSERT_EQ(saved.errors, "");
    options.ranks = to;
    options.steps = 0;
    options.save = "";
    options.load = saved.checkpoint;
    options.overrides = joined(kGpt2, {"parallel.tp=" + std::to_string(to)});
    const Training loaded = train_on_ranks(options);
    ASSERT_EQ(loaded.errors, "");
    EXPECT_FALSE(saved.tensors.empty());
    EXPECT_EQ(loaded.tensors, saved.tensors) << from << " to " << to;
  }
  std::filesystem::remove_all(folder);
}

TEST_F(DistTensorParallelRun, RefusesSizesThatDoNotDivide) {
  const auto expect_refused = [](const Overrides& overrides, int tp, const std::vector<std::string>& parts) {
    const std::string said = train(overrides, tp, 1).errors;
    for (const std::string& part : parts)
      EXPECT_NE(said.find(part), std::string::npos) << part << " is not in: " << said;
  };
  expect_refused(
      {}, 4,
      {"parallel.tp: 4", "model.heads = 4", "model.kv_heads = 2", "model.mlp_width = 96", "1 or 2 on 4 processes"});
  expect_refused({"model.mlp_width=97"}, 2, {"1 on 2 processes"});
  expect_refused({"model.context=31", "train.micro_batch=1"}, 2, {"parallel.tp: 2", "the 31 tokens"});
}

}  // namespace
}  // namespace ring::test
