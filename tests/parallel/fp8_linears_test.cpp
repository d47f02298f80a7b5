// train.linears in FP8: runs that are resumed, recomputed or shared among processes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "comm/gloo/gloo.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

class DistFp8Linears : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static TrainingOptions options(int steps, std::vector<std::string> more = {}) {
    TrainingOptions o;
    o.steps = steps;
    o.overrides = {str("train.linears=", GetParam()), "optimizer.eps=1e-4"};
    o.overrides.insert(o.overrides.end(), more.begin(), more.end());
    return o;
  }
  static Training trained(const TrainingOptions& o) {
    Training t = train_on_ranks(o);
    EXPECT_EQ(t.errors, "");
    return t;
  }
  static bool tensorwise() { return std::string(GetParam()) == "fp8_tensor"; }

  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("ringmaster-fp8-" + std::to_string(getpid()))).string();
};
INSTANTIATE_TEST_SUITE_P(All, DistFp8Linears, testing::Values("fp8_blocks", "fp8_tensor"),
                         [](const auto& format) { return std::string(format.param); });

TEST_P(DistFp8Linears, TrainAndResume) {
  const Training whole = trained(options(8));
  EXPECT_LT(whole.losses.back(), whole.losses.front() - 0.05);
  TrainingOptions plain = options(8);
  plain.overrides[0] = "train.linears=bf16";
  const double difference = largest_loss_difference(trained(plain), whole);
  EXPECT_GT(difference, 1e-6);
  EXPECT_LT(difference, 1e-2);
  TrainingOptions half = options(4), rest = options(4);
  half.save = folder_;
  rest.load = trained(half).checkpoint;
  const Training second = trained(rest);
  EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 4, whole.losses.end()));
  EXPECT_EQ(second.tensors, whole.tensors);
}

TEST_P(DistFp8Linears, RecomputationChangesNoBit) {
  const std::vector<std::string> models[] = {{"model.context=128", "model.mlp=gelu_tanh", "model.biases=all"},
                                             {"model.context=128", "model.mlp=swiglu", "model.biases=none"},
                                             {"model.context=128", "train.swiglu_inputs=fp8", "model.mlp_width=256"},
                                             {"model.context=128", "train.swiglu_inputs=fp8", "model.mlp_width=128",
                                              "model.biases=all", "train.mlp_chunk=96"}};
  for (const std::vector<std::string>& model : models) {
    SCOPED_TRACE(model[1] + ", " + model[2]);
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.end(), model.begin(), model.end());
      return trained(options(2, more));
    };
    const Training none = with({"train.recompute=none"});
    for (const char* recompute : {"auto", "attention", "mlp", "block", "full"})
      EXPECT_TRUE(same_bits(none, with({str("train.recompute=", recompute)}))) << recompute;
    EXPECT_TRUE(same_bits(none, with({"train.recompute=none", "train.activation_offload=true"})));
  }
}

TEST_P(DistFp8Linears, TakeTheMemoryThatIsPredicted) {
  const std::vector<std::string> models[] = {{}, {"train.swiglu_inputs=fp8", "model.mlp_width=128"}};
  for (const std::vector<std::string>& model : models)
    for (const int ranks : {1, 2})
      for (const char* recompute : {"none", "block"}) {
        TrainingOptions o = options(3, model);
        o.overrides.insert(o.overrides.end(),
                           {str("train.recompute=", recompute), str("parallel.zero=", ranks > 1 ? 3 : 0)});
        o.ranks = ranks;
        o.dry = true;
        const Training t = trained(o);
        EXPECT_EQ(t.slabs, t.dry_slabs) << recompute << ", " << ranks << " ranks, " << model.size();
      }
}

// The forward rounds, so that a run with the setting computes something else, in every layout the same. A value near
// the middle of two codes may get the other one if a sum is rounded differently. After one step, that changes weights
// by a fraction of what the setting does.
TEST_P(DistFp8Linears, GateAndUpInFp8AreTheSameInEveryLayout) {
  const auto with = [](int ranks, std::vector<std::string> more) {
    more.insert(more.begin(), {"model.mlp_width=256", "model.context=512", "train.batch_size=2"});
    TrainingOptions o = options(1, std::move(more));
    o.ranks = ranks;
    return trained(o);
  };
  const std::string fp8 = "train.swiglu_inputs=fp8";
  const Training one = with(1, {fp8, "train.micro_batch=2"});
  const double effect = largest_difference(one, with(1, {"train.micro_batch=2"}));
  EXPECT_GT(effect, 5e-3);
  for (const char* layout : {"parallel.dp=2", "parallel.zero=3", "parallel.cp=2"})
    EXPECT_LT(largest_difference(one, with(2, {fp8, layout, "train.micro_batch=1"})), effect / 3) << layout;
}

TEST_P(DistFp8Linears, GateAndUpInFp8TrainAndResume) {
  const auto with = [](int steps, const char* inputs) {
    TrainingOptions o = options(steps, {str("train.swiglu_inputs=", inputs), "model.mlp_width=256"});
    o.validate = true;
    return o;
  };
  const Training whole = trained(with(8, "fp8")), plain = trained(with(8, "auto"));
  EXPECT_LT(whole.losses.back(), whole.losses.front() - 0.05);
  EXPECT_LT(largest_loss_difference(plain, whole), 1e-2);
  EXPECT_NE(plain.validation, whole.validation);
  TrainingOptions half = with(4, "fp8"), rest = half;
  half.save = folder_;
  rest.load = trained(half).checkpoint;
  const Training second = trained(rest);
  EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 4, whole.losses.end()));
  EXPECT_EQ(second.tensors, whole.tensors);
  EXPECT_EQ(second.validation, whole.validation);
}

// Blocks of 128 tokens are the same on any rank and in any micro-batch, but a scale for the whole tensor is not.
TEST_P(DistFp8Linears, LayoutsAgree) {
  const std::vector<std::string> sizes = {"model.context=512", "train.batch_size=2"};
  const auto with = [&](std::vector<std::string> more, int ranks) {
    more.insert(more.begin(), sizes.begin(), sizes.end());
    TrainingOptions o = options(3, more);
    o.ranks = ranks;
    return trained(o);
  };
  const Training one = with({"train.micro_batch=2"}, 1);
  const double tolerance = tensorwise() ? 1e-3 : 1e-6;
  EXPECT_LT(largest_loss_difference(one, with({"train.micro_batch=1"}, 1)), tolerance);
  for (const char* layout : {"parallel.dp=2", "parallel.zero=1", "parallel.zero=2", "parallel.zero=3"})
    EXPECT_LT(largest_loss_difference(one, with({layout, "train.micro_batch=1"}, 2)), tolerance) << layout;
  // Sums of attention are rounded differently, and then some elements in FP8.
  EXPECT_LT(largest_loss_difference(one, with({"parallel.cp=2", "train.micro_batch=1"}, 2)), 10 * tolerance);
}

// With ZeRO-2 each rank quantizes whole weights. With ZeRO-3 weights are gathered in FP8 from the ranks that own their
// rows, and each layer is computed from the same bytes, also if weights are evaluated between steps.
TEST_P(DistFp8Linears, WeightsGatheredInFp8ChangeNoBit) {
  // The largest of 32,768 normal numbers is about 4.15 standard deviations: near 1.75 / 16, where scales double. So the
  // shards of a weight differ in the scales of their own maxima.
  const std::vector<std::string> wide = {"model.width=256",     "model.heads=4",        "model.kv_heads=2",
                                         "model.mlp_width=384", "model.layers=2",       "model.context=16",
                                         "model.init=normal",   "model.init_std=0.0262"};
  const std::vector<std::string> cases[] = {
      {"train.micro_batch=1", "model.biases=all", "model.norm_place=post", "optimizer.clip=0.05"},
      {"train.linears_except=['*.mlp.down.*', 'blocks.1.attention.*']", "model.layers=3",
       "optimizer.groups=[{match: ['embedding.*', 'blocks.0.*'], frozen: true}]"},
      {"train.recompute=full", "train.micro_batch=2", "optimizer.kind=muon"},
      {"train.recompute=auto", "train.mlp_chunk=24", "train.ema=0.9"},
      // Maxima grow by several powers of two in each step, and those of averages are smaller.
      {"optimizer.lr=0.3", "schedule.warmup_steps=0", "train.ema=0.5"}};
  const auto with = [&](int ranks, int zero, const std::vector<std::string>& more) {
    TrainingOptions o = options(2, more);
    o.overrides.push_back(str("parallel.zero=", zero));
    o.ranks = ranks;
    o.validate = o.verify_order = true;
    o.validate_often = zero == 3;
    return trained(o);
  };
  const auto expect_same = [&](int ranks, const std::vector<std::string>& more) {
    const Training whole = with(ranks, 2, more), gathered = with(ranks, 3, more);
    EXPECT_TRUE(same_bits(whole, gathered));
    EXPECT_GT(gathered.validation, 0);
    EXPECT_EQ(whole.validation, gathered.validation);
    EXPECT_EQ(whole.average_validation, gathered.average_validation);
  };
  for (const std::vector<std::string>& more : cases) {
    SCOPED_TRACE(more[0]);
    expect_same(2, more);
  }
  expect_same(3, {"train.batch_size=6", "train.micro_batch=1"});
  expect_same(2, wide);  // the weights of stacked layers have several owners
  std::vector<std::string> sharded = wide;
  sharded.insert(sharded.end(), {"model.kv_heads=4", "model.mlp_width=256", "parallel.tp=2"});
  expect_same(4, sharded);
}

TEST_P(DistFp8Linears, ResumeWithGatheredWeights) {
  const auto with = [&](int steps) {
    TrainingOptions o = options(steps, {"parallel.zero=3", "train.micro_batch=2", "model.dropout=0.1"});
    o.ranks = 2;
    o.validate = true;
    return o;
  };
  const Training whole = trained(with(4));
  TrainingOptions half = with(2), rest = with(2);
  half.save = folder_;
  rest.load = trained(half).checkpoint;
  const Training second = trained(rest);
  EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
  EXPECT_EQ(second.tensors, whole.tensors);
  EXPECT_EQ(second.validation, whole.validation);
}

// Shards have the scales of the whole tensors: maxima are reduced, or each shard has whole blocks.
TEST_P(DistFp8Linears, ShardsOfTensorParallelismAgreeWithTheWhole) {
  std::vector<std::string> model = {"train.batch_size=2", "train.micro_batch=2", "model.biases=all"};
  if (!tensorwise())
    model.insert(model.end(), {"model.width=256", "model.kv_heads=4", "model.mlp_width=256", "model.layers=1"});
  const Training one = trained(options(3, model));
  const auto on_two = [&](int steps) {
    TrainingOptions sharded = options(steps, model);
    sharded.overrides.emplace_back("parallel.tp=2");
    sharded.ranks = 2;
    return trained(sharded);
  };
  EXPECT_LT(largest_loss_difference(one, on_two(3)), 1e-5);
  // The model and the setting of GateAndUpInFp8AreTheSameInEveryLayout.
  model.insert(model.end(), {"model.mlp_width=256", "train.swiglu_inputs=fp8"});
  const Training rounded = trained(options(1, model)), sharded = on_two(1);
  model.back() = "train.swiglu_inputs=auto";
  const double effect = largest_difference(rounded, trained(options(1, model)));
  EXPECT_GT(effect, 5e-3);
  EXPECT_LT(largest_difference(rounded, sharded), effect / 3);
}

TEST_P(DistFp8Linears, AStepThatIsNotFiniteIsNotAccepted) {
  for (const int ranks : {1, 2}) {
    TrainingOptions o = options(4, {"optimizer.lr=1e30", "schedule.warmup_steps=0"});
    if (ranks > 1) o.overrides.emplace_back("parallel.zero=3");
    o.ranks = ranks;
    const Training t = train_on_ranks(o);
    EXPECT_NE(t.errors.find("is not finite"), std::string::npos) << t.errors;
  }
}

TEST_P(DistFp8Linears, ShapesThatDoNotFitAreRefused) {
  const auto error = [](std::vector<std::string> more) { return train_on_ranks(options(1, std::move(more))).errors; };
  const std::string narrow = error({"model.mlp_width=72"});
  EXPECT_NE(narrow.find(str("train.linears: ", GetParam(), ": blocks.0.mlp.down.weight has 72 inputs")),
            std::string::npos)
      << narrow;
  EXPECT_NE(narrow.find("multiple of 16"), std::string::npos) << narrow;
  EXPECT_EQ(error({"model.mlp_width=72", "train.linears_except=['*.mlp.down.*']"}), "");
  const std::string unknown = error({"train.linears_except=['*.experts.*']"});
  EXPECT_NE(unknown.find("train.linears_except[0]: \"*.experts.*\""), std::string::npos) << unknown;
  const auto expect_error = [&](std::vector<std::string> more, const char* part) {
    more.emplace_back("train.swiglu_inputs=fp8");
    const std::string text = error(std::move(more));
    EXPECT_NE(text.find(str("train.swiglu_inputs: fp8 requires ", part)), std::string::npos) << text;
  };
  expect_error({"train.linears=bf16", "model.mlp_width=128"}, "train.linears: fp8_blocks or fp8_tensor, got bf16");
  expect_error({"model.mlp=gelu", "model.mlp_width=128"}, "model.mlp: swiglu");
  expect_error({"model.norm_place=sub", "model.mlp_width=128"}, "a model.norm_place other than sub");
  expect_error({"model.mlp_width=128", "train.linears_except=['*.down.*']"},
               "a layer `down` that train.linears_except does not name");
  expect_error({"model.mlp_width=192"}, "model.mlp_width to be a multiple of 128, got 192");
  if (tensorwise())
    expect_error({"model.mlp_width=128", "parallel.tp=2"}, "model.mlp_width to be a multiple of 128 x 2 (parallel.tp)");
  const std::string sharded = error({"parallel.tp=2"});
  if (!tensorwise()) {
    for (const char* part : {"blocks.0.attention.wq.weight has 32 outputs", "parallel.tp: 2", "multiple of 128"})
      EXPECT_NE(sharded.find(part), std::string::npos) << part << " is not in: " << sharded;
  }
}

}  // namespace
}  // namespace ring::test
