// Moments in FP8 in whole runs: in every layout, resumed, on the host, and converted from and to other types.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "comm/gloo/gloo.h"
#include "core/check.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

class DistFp8Moments : public testing::TestWithParam<const char*> {
 protected:
  ~DistFp8Moments() override { std::filesystem::remove_all(folder_); }
  static TrainingOptions options(int ranks, int steps, std::vector<std::string> more = {}) {
    TrainingOptions o;
    o.ranks = ranks;
    o.steps = steps;
    o.overrides = {GetParam(), "optimizer.moments=fp8", "optimizer.clip=0", "train.micro_batch=0"};
    o.overrides.insert(o.overrides.end(), more.begin(), more.end());
    return o;
  }
  static Training train(const TrainingOptions& o) {
    Training t = train_on_ranks(o);
    EXPECT_EQ(t.errors, "");
    return t;
  }
  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("ringmaster-fp8-moments-" + std::to_string(getpid()))).string();
};
INSTANTIATE_TEST_SUITE_P(Kinds, DistFp8Moments, testing::Values("optimizer.kind=adamw", "optimizer.kind=muon"),
                         [](const auto& info) { return std::string(info.param).substr(15); });

TEST_P(DistFp8Moments, TrainLikeF32) {
  const Training coded = train(options(1, 12)), plain = train(options(1, 12, {"optimizer.moments=fp32"}));
  EXPECT_FALSE(same_bits(coded, plain, "model."));
  EXPECT_LT(largest_loss_difference(plain, coded), 0.01);
  EXPECT_LT(coded.losses.back(), coded.losses.front());
  EXPECT_TRUE(coded.tensors.contains("optimizer.m.embedding.tokens.weight:e4m3_scales"));
  EXPECT_LT(static_cast<double>(coded.state_bytes[0]), 0.6 * static_cast<double>(plain.state_bytes[0]));
}

// Blocks belong to parameters: every shard of ZeRO has the bits of the whole, as have states on the host.
TEST_P(DistFp8Moments, HaveTheSameBitsWhereverTheyLive) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  for (const int ranks : {1, 2, 4}) {
    const Training plain = train(options(ranks, 5, {"model.dropout=0.1"}));
    const auto expect_same = [&](std::vector<std::string> more) {
      more.emplace_back("model.dropout=0.1");
      EXPECT_TRUE(same_bits(plain, train(options(ranks, 5, more)))) << ranks << " ranks, " << more[0];
    };
    for (const int zero : {1, 2, 3})
      if (ranks > 1) expect_same({str("parallel.zero=", zero)});
    expect_same(
        {"optimizer.offload=states", "optimizer.offload_chunk_bytes=3000", "optimizer.offload_staging_bytes=0"});
    expect_same({"optimizer.offload=all", "optimizer.offload_chunk_bytes=10000", "parallel.zero=2"});
  }
}

TEST_P(DistFp8Moments, AgreeWithTensorParallelSlices) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  const Training one = train(options(1, 5)), two = train(options(2, 5, {"parallel.tp=2"}));
  EXPECT_LT(largest_loss_difference(one, two), 0.01);
}

// A resumed run has the bits of an uninterrupted one, also if the layout changes in between.
TEST_P(DistFp8Moments, ResumeBitForBit) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  const Training whole = train(options(2, 6, {"parallel.zero=1"}));
  TrainingOptions first = options(2, 3, {"parallel.zero=3"});
  first.save = folder_;
  const std::string saved = train(first).checkpoint;
  for (const char* zero : {"parallel.zero=0", "parallel.zero=2"}) {
    TrainingOptions rest = options(2, 3, {zero, "optimizer.offload=states"});
    rest.load = saved;
    const Training second = train(rest);
    EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
    EXPECT_EQ(second.tensors, whole.tensors) << zero;
  }
}

// Codes move between numbers of slices unchanged, as their blocks are within the rows of each.
TEST_P(DistFp8Moments, CodesMoveBetweenLayouts) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  TrainingOptions o = options(2, 3, {"parallel.tp=2"});
  o.save = folder_ + "/first";
  const Training first = train(o);
  o = options(1, 0);
  o.load = first.checkpoint;
  EXPECT_EQ(train(o).tensors, first.tensors);
}

TEST_P(DistFp8Moments, LoadFromAndIntoOtherTypes) {
  TrainingOptions o = options(1, 4);
  o.save = folder_ + "/fp8";
  const Training coded = train(o);
  o = options(1, 0, {"optimizer.moments=fp32"});
  o.load = coded.checkpoint;
  o.save = folder_ + "/fp32";
  const Training plain = train(o);
  EXPECT_FALSE(plain.tensors.contains("optimizer.m.embedding.tokens.weight:e4m3_scales"));
  for (const float v : plain.tensors.at("optimizer.v.embedding.tokens.weight")) ASSERT_GE(v, 0);
  o = options(1, 3);
  o.load = plain.checkpoint;
  const Training back = train(o);  // the values are exact in f32, and so is their way back
  o.load = coded.checkpoint;
  EXPECT_TRUE(same_bits(back, train(o), "model."));
}

TEST_P(DistFp8Moments, RefuseSlicesThatAreNotBlocks) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  const Training t = train_on_ranks(options(2, 1, {"parallel.tp=2", "model.mlp_width=48"}));  // 24 columns each
  EXPECT_NE(t.errors.find("optimizer.moments: fp8: blocks.0.mlp.down.weight does not consist of blocks of 16"),
            std::string::npos)
      << t.errors;
}

}  // namespace
}  // namespace ring::test
