// A new feed-forward layer is a class and a function that creates it. This one sums several experts; under tensor
// parallelism each process holds whole experts. Only this file knows it, and still it trains, resumes, and runs in
// every layout.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "model/architectures.h"
#include "model/decoder.h"
#include "tests/parallel/training.h"
#include "tests/trainer/tiny.h"

namespace ring::test {
namespace {

constexpr std::int64_t kExperts = 4, kExpertWidth = 24;

std::vector<Linear::Output> expert_outputs() {
  std::vector<Linear::Output> outputs;
  for (std::int64_t e = 0; e < kExperts; ++e) outputs.push_back({str("experts.", e, ".up"), kExpertWidth, 0.1f});
  return outputs;
}

class Experts final : public FfnLayer {
 public:
  Experts(const ParamPrefix& at, const ModelConfig& c)
      : up_(at, expert_outputs(), c.width, true, Cut::parts),
        down_(at, {{"down", c.width, 0.1f}}, kExperts * kExpertWidth, false, Cut::inputs) {}
  Var operator()(Run& run, const Var& x, const Var& residual) const override {
    return down_(run, activate(run, up_(run, x), Activation::relu2), residual);
  }
  ParamList parameters() const override {
    ParamList all = up_.parameters();
    return all += down_.parameters();
  }

 private:
  Linear up_, down_;
};

class DistToyFfn : public testing::Test {
 protected:
  void SetUp() override {
    add_architecture("experts", [](const ModelConfig& c, std::int64_t padding) {
      return std::make_unique<Decoder>(c, padding, [](const ParamPrefix& at, const ModelConfig& m, std::int64_t) {
        return std::make_unique<Experts>(at, m);
      });
    });
  }
  void TearDown() override {
    remove_architecture("experts");
    std::filesystem::remove_all(folder_);
  }
  static TrainingOptions options(int steps, std::vector<std::string> more = {}) {
    TrainingOptions o;
    o.steps = steps;
    o.overrides = {"model.architecture=experts", "optimizer.eps=1e-4"};
    o.overrides.insert(o.overrides.end(), more.begin(), more.end());
    return o;
  }
  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("ringmaster-ffn-" + std::to_string(getpid()))).string();
};

TEST_F(DistToyFfn, TrainsAndResumes) {
  const Training whole = train_on_ranks(options(8));
  ASSERT_EQ(whole.errors, "");
  EXPECT_LT(whole.losses.back(), whole.losses.front() - 0.05);
  EXPECT_TRUE(whole.tensors.contains("model.blocks.1.mlp.experts.3.up.weight"));
  TrainingOptions half = options(4);
  half.save = folder_;
  const Training first = train_on_ranks(half);
  ASSERT_EQ(first.errors, "");
  TrainingOptions rest = options(4);
  rest.load = first.checkpoint;
  const Training second = train_on_ranks(rest);
  ASSERT_EQ(second.errors, "");
  EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 4, whole.losses.end()));
  EXPECT_EQ(second.tensors, whole.tensors);
}

TEST_F(DistToyFfn, EveryLayoutComputesWhatOneProcessDoes) {
  const Training alone = train_on_ranks(options(4));
  ASSERT_EQ(alone.errors, "");
  const std::vector<std::vector<std::string>> layouts = {
      {"parallel.cp=2"},
      {"parallel.tp=2"},
      {"parallel.tp=2", "optimizer.kind=muon"},
      {"parallel.zero=3", "train.micro_batch=2"},
      {"train.recompute=mlp", "train.mlp_chunk=16", "train.micro_batch=2"}};
  for (const std::vector<std::string>& layout : layouts) {
    const bool muon = layout.back() == "optimizer.kind=muon";
    const Training one = muon ? train_on_ranks(options(4, {"optimizer.kind=muon"})) : alone;
    TrainingOptions o = options(4, layout);
    o.ranks = 2;
    const Training two = train_on_ranks(o);
    ASSERT_EQ(two.errors, "") << layout[0];
    EXPECT_LT(largest_difference(one, two), 1e-4) << layout[0];
    EXPECT_LT(largest_loss_difference(one, two), 1e-5) << layout[0];
  }
}

TEST_F(DistToyFfn, ACheckpointOfTwoSlicesContinuesInOneProcess) {
  TrainingOptions sliced = options(4, {"parallel.tp=2"});
  sliced.ranks = 2;
  sliced.save = folder_;
  const Training two = train_on_ranks(sliced);
  ASSERT_EQ(two.errors, "");
  TrainingOptions rest = options(1);
  rest.load = two.checkpoint;
  const Training one = train_on_ranks(rest);
  ASSERT_EQ(one.errors, "");
  const Training whole = train_on_ranks(options(5));
  EXPECT_NEAR(one.losses[0], whole.losses[4], 1e-5 * whole.losses[4]);
}

}  // namespace
}  // namespace ring::test
