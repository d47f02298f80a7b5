// ZeRO 0 to 3 on several ranks against one process.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "comm/gloo/gloo.h"
#include "core/philox.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

using Overrides = std::vector<std::string>;

// eps: if a gradient is pure rounding error (like a key bias's), AdamW's usual epsilon would turn it into a full step.
Training trained(int ranks, int zero, Overrides more = {}, int steps = 6) {
  TrainingOptions options;
  options.ranks = ranks;
  options.steps = steps;
  options.overrides = {str("parallel.zero=", zero), "optimizer.eps=1e-4"};
  options.overrides.insert(options.overrides.end(), more.begin(), more.end());
  return train_on_ranks(options);
}

class DistZero : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

// Models that differ in properties relevant for sharding.
const std::vector<Overrides> kModels = {
    {"train.micro_batch=1", "model.dropout=0.1", "model.layers=3"},
    {"train.micro_batch=1", "model.dropout=0.1", "model.tied_embeddings=true", "model.positions=learned",
     "model.biases=all", "model.norm=layer", "model.mlp=gelu_tanh", "train.recompute=mlp", "train.mlp_chunk=20"},
    {"train.micro_batch=2", "model.norm_place=post", "model.qk_norm=true", "model.layers=1", "train.recompute=block",
     "optimizer.clip=0.05", "train.mlp_chunk=24"},
};

TEST_F(DistZero, EveryDegreeReachesWhatOneProcessDoes) {
  for (const Overrides& model : kModels) {
    const Training one = trained(1, 0, model);
    ASSERT_EQ(one.errors, "");
    EXPECT_LT(one.losses.back(), one.losses.front());
    for (const int ranks : {2, 4})
      for (const int zero : {0, 1, 2, 3}) {
        const Training many = trained(ranks, zero, model);
        ASSERT_EQ(many.errors, "") << "zero " << zero;
        EXPECT_LT(largest_loss_difference(one, many), 1e-5) << ranks << " ranks, zero " << zero;
        EXPECT_LT(largest_difference(one, many), 1e-4) << ranks << " ranks, zero " << zero;
      }
  }
}

// With one micro-batch, sums over ranks and micro-batches have the same order: results are bit-identical.
TEST_F(DistZero, EveryDegreeHasTheSameBitsInOneMicroBatch) {
  const Overrides model = {"train.micro_batch=0", "optimizer.clip=0", "model.dropout=0.1"};
  for (const int ranks : {2, 4}) {
    const Training plain = trained(ranks, 0, model);
    ASSERT_EQ(plain.errors, "");
    for (const int zero : {1, 2, 3}) {
      const Training sharded = trained(ranks, zero, model);
      ASSERT_EQ(sharded.errors, "");
      EXPECT_TRUE(same_bits(plain, sharded)) << ranks << " ranks, zero " << zero;
    }
  }
}

// Degrees 0 and 1 first add locally; 2 and 3 first add over ranks.
TEST_F(DistZero, TheSameLayoutTwiceHasTheSameBits) {
  const Overrides model = {"train.micro_batch=1", "model.dropout=0.1"};
  const Training zero0 = trained(2, 0, {"train.micro_batch=1", "optimizer.clip=0"});
  EXPECT_TRUE(same_bits(zero0, trained(2, 1, {"train.micro_batch=1", "optimizer.clip=0"})));
  const Training zero2 = trained(2, 2, model);
  ASSERT_EQ(zero2.errors, "");
  EXPECT_TRUE(same_bits(zero2, trained(2, 2, model)));
  EXPECT_TRUE(same_bits(zero2, trained(2, 3, model)));
  Overrides recomputed = model;
  recomputed.push_back("train.recompute=block");
  EXPECT_TRUE(same_bits(zero2, trained(2, 3, recomputed)));
}

TEST_F(DistZero, AllRanksRunTheSameCollectivesInOneOrder) {
  for (const int zero : {1, 2, 3}) {
    TrainingOptions options;
    options.ranks = 3;
    options.steps = 2;
    options.verify_order = true;
    options.validate = true;
    options.overrides = {str("parallel.zero=", zero), "train.batch_size=6", "train.micro_batch=1"};
    EXPECT_EQ(train_on_ranks(options).errors, "") << "zero " << zero;
  }
}

TEST_F(DistZero, GradientsMayBeReducedInBf16) {
  const Training exact = trained(2, 0, {"train.micro_batch=2"});
  for (const int zero : {0, 1, 2, 3}) {
    const Training rounded = trained(2, zero, {"train.micro_batch=2", "parallel.reduce=bf16"});
    ASSERT_EQ(rounded.errors, "");
    EXPECT_LT(largest_loss_difference(exact, rounded), 2e-3) << "zero " << zero;
    EXPECT_GT(largest_difference(exact, rounded), 0) << "zero " << zero << " did not round";
  }
}

TEST_F(DistZero, ValidationSeesTheNewestWeights) {
  TrainingOptions options;
  options.validate = true;
  options.steps = 3;
  const double one = train_on_ranks(options).validation;
  EXPECT_GT(one, 0);
  options.ranks = 2;
  for (const int zero : {0, 1, 2, 3}) {
    options.overrides = {str("parallel.zero=", zero)};
    for (const int steps : {0, 3}) {
      options.steps = steps;
      const Training many = train_on_ranks(options);
      ASSERT_EQ(many.errors, "");
      if (steps) {
        EXPECT_NEAR(many.validation, one, 1e-5 * one) << "zero " << zero;
      }
    }
  }
}

// Each rank holds its share of weights, moments and gradients.
TEST_F(DistZero, EachRankKeepsItsShare) {
  const Training one = trained(1, 0, {"train.micro_batch=2"}, 1);
  for (const int ranks : {2, 4})
    for (const int zero : {1, 2, 3}) {
      const Training many = trained(ranks, zero, {"train.micro_batch=2"}, 1);
      ASSERT_EQ(many.errors, "");
      std::uint64_t sum = 0;
      for (const std::uint64_t bytes : many.state_bytes) {
        EXPECT_LE(static_cast<double>(bytes), (1.0 / ranks + 0.03) * static_cast<double>(one.state_bytes[0]));
        sum += bytes;
      }
      EXPECT_EQ(sum, one.state_bytes[0]) << "kept twice, or not at all";
      EXPECT_NE(many.memory[0], one.memory[0]);
    }
}

class DistZeroCheckpoints : public DistZero {
 protected:
  void SetUp() override {
    DistZero::SetUp();
    folder_ = fs::temp_directory_path() / ("ringmaster-zero-" + std::to_string(getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  fs::path folder_;
};

// A checkpoint moves through different layouts: parameters and optimizer states stay bit-identical to the saved ones.
TEST_F(DistZeroCheckpoints, MoveBetweenLayouts) {
  struct Layout {
    int ranks, zero;
  };
  TrainingOptions options;
  options.steps = 3;
  options.ranks = 4;
  options.overrides = {"parallel.zero=3", "train.micro_batch=1"};
  options.save = path("first");
  const Training first = train_on_ranks(options);
  ASSERT_EQ(first.errors, "");
  std::string from = first.checkpoint;
  options.steps = 0;
  for (const Layout& l : {Layout{1, 0}, Layout{2, 1}, Layout{4, 0}, Layout{3, 2}, Layout{2, 3}}) {
    options.ranks = l.ranks;
    options.overrides = {str("parallel.zero=", l.zero), "train.batch_size=12", "train.micro_batch=1"};
    options.load = from;
    options.save = path(str("to-", l.ranks, "-", l.zero));
    const Training moved = train_on_ranks(options);
    ASSERT_EQ(moved.errors, "");
    for (const auto& [name, values] : first.tensors) EXPECT_EQ(moved.tensors.at(name), values) << name;
    EXPECT_EQ(moved.tensors.size(), first.tensors.size());
    from = moved.checkpoint;
  }
}

// No rank waits for a rank that diagnoses something else, and all ranks name the same tensor.
TEST_F(DistZero, AllRanksDiagnoseTogether) {
  for (const int zero : {0, 1, 3}) {
    const Training t = trained(2, zero, {"train.micro_batch=2", "optimizer.lr=1e30", "model.layers=3"});
    const std::string first = t.errors.substr(0, t.errors.find('\n'));
    EXPECT_NE(first.find("first tensor"), std::string::npos) << t.errors;
    EXPECT_EQ(first.substr(8), t.errors.substr(first.size() + 1 + 8, first.size() - 8));
  }
}

// An interrupted and resumed run equals an uninterrupted one.
TEST_F(DistZeroCheckpoints, ResumeBitForBit) {
  for (const int zero : {1, 3}) {
    TrainingOptions options;
    options.ranks = 2;
    options.steps = 4;
    options.overrides = {str("parallel.zero=", zero), "train.micro_batch=2", "model.dropout=0.1"};
    const Training whole = train_on_ranks(options);
    ASSERT_EQ(whole.errors, "");
    options.steps = 2;
    options.save = path(str("cut-", zero));
    options.load = train_on_ranks(options).checkpoint;
    options.save = "";
    const Training rest = train_on_ranks(options);
    ASSERT_EQ(rest.errors, "");
    for (const auto& [name, values] : whole.tensors) EXPECT_EQ(rest.tensors.at(name), values) << name;
    EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
  }
}

TEST_F(DistZeroCheckpoints, MayGiveInitialWeightsOnly) {
  TrainingOptions options;
  options.steps = 2;
  options.save = path("source");
  const Training source = train_on_ranks(options);
  ASSERT_EQ(source.errors, "");
  options.load = source.checkpoint;
  options.save = "";
  options.init_from = true;
  options.validate = true;
  options.steps = 0;
  const Training one = train_on_ranks(options);
  for (const int zero : {1, 3}) {
    options.ranks = 2;
    options.overrides = {str("parallel.zero=", zero)};
    const Training many = train_on_ranks(options);
    ASSERT_EQ(many.errors, "");
    EXPECT_TRUE(same_bits(one, many, "model."));
    EXPECT_NEAR(many.validation, one.validation, 1e-6);
    EXPECT_EQ(many.tensors.at("optimizer.m.head.weight"), one.tensors.at("optimizer.m.head.weight"));
  }
}

}  // namespace
}  // namespace ring::test
