// Training with compressed gradients: layouts, checkpoints and residuals.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "comm/gloo/gloo.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

TrainingOptions compressed_options(int ranks, int zero, const std::string& compress, int steps = 6) {
  TrainingOptions options;
  options.ranks = ranks;
  options.steps = steps;
  options.overrides = {str("parallel.zero=", zero), "parallel.compress=" + compress, "train.micro_batch=1",
                       "optimizer.eps=1e-4"};
  return options;
}

class DistCompression : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
    folder_ = fs::temp_directory_path() / ("ringmaster-compression-" + std::to_string(getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  fs::path folder_;
};

// train_on_ranks() fails if ranks that share weights have different bits.
TEST_F(DistCompression, LossesAreCloseToExactOnesInEveryLayout) {
  const Training exact = train_on_ranks(compressed_options(4, 0, "none"));
  ASSERT_EQ(exact.errors, "");
  const std::pair<const char*, double> tolerances[] = {{"bf16", 1e-3}, {"int8", 2e-3}, {"fp8", 5e-3}};
  for (const auto& [compress, tolerance] : tolerances)
    for (const int zero : {0, 1, 2, 3}) {
      const Training t = train_on_ranks(compressed_options(4, zero, compress));
      ASSERT_EQ(t.errors, "") << compress << " zero " << zero;
      EXPECT_LT(largest_loss_difference(exact, t), tolerance) << compress << " zero " << zero;
      EXPECT_GT(largest_loss_difference(exact, t), 0) << compress << " zero " << zero << " did not round";
    }
  const Training top = train_on_ranks(compressed_options(2, 0, "topk", 12));
  ASSERT_EQ(top.errors, "");
  EXPECT_LT(top.losses.back(), top.losses.front());
}

// Blocks of zeros (rows of absent tokens) are left out, and nothing else changes.
TEST_F(DistCompression, SparseHasTheBitsOfNone) {
  for (const int zero : {0, 1, 3}) {
    const Training exact = train_on_ranks(compressed_options(4, zero, "none", 3));
    const Training sparse = train_on_ranks(compressed_options(4, zero, "sparse", 3));
    ASSERT_EQ(exact.errors + sparse.errors, "");
    EXPECT_TRUE(same_bits(exact, sparse)) << zero;
  }
}

TEST_F(DistCompression, WorksWithOtherAxes) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"parallel.tp=2", "model.positions=learned"}, {"parallel.cp=2"}}) {
    TrainingOptions options = compressed_options(4, 2, "none");
    options.overrides.insert(options.overrides.end(), more.begin(), more.end());
    const Training exact = train_on_ranks(options);
    options.overrides.emplace_back("parallel.compress=int8");
    const Training t = train_on_ranks(options);
    ASSERT_EQ(exact.errors + t.errors, "") << more[0];
    EXPECT_LT(largest_loss_difference(exact, t), 2e-3) << more[0];
    EXPECT_GT(largest_loss_difference(exact, t), 0) << more[0];
  }
}

TEST_F(DistCompression, ResumesBitForBit) {
  for (const int zero : {0, 1, 3})
    for (const char* compress : {"int8", "topk"}) {
      TrainingOptions options = compressed_options(2, zero, compress, 4);
      const Training whole = train_on_ranks(options);
      ASSERT_EQ(whole.errors, "");
      options.steps = 2;
      options.save = path(str("cut-", zero, compress));
      options.load = train_on_ranks(options).checkpoint;
      options.save = "";
      const Training rest = train_on_ranks(options);
      ASSERT_EQ(rest.errors, "");
      EXPECT_TRUE(whole.tensors.contains("residuals.1.blocks.0.attention.wq.weight"));
      for (const auto& [name, values] : whole.tensors) EXPECT_EQ(rest.tensors.at(name), values) << name;
      EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
    }
}

// Returns the residuals of each parameter, added over the replicas.
std::map<std::string, std::vector<double>> summed_residuals(const Training& t) {
  std::map<std::string, std::vector<double>> sums;
  for (const auto& [name, values] : t.tensors) {
    if (!name.starts_with("residuals.")) continue;
    std::vector<double>& sum = sums[name.substr(name.find('.', std::string("residuals.").size()))];
    sum.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  }
  return sums;
}

// Residuals may move to other replicas, but none is lost.
TEST_F(DistCompression, ResidualsSurviveAChangeOfLayout) {
  TrainingOptions options = compressed_options(4, 0, "int8", 3);
  options.save = path("first");
  const Training first = train_on_ranks(options);
  ASSERT_EQ(first.errors, "");
  const auto wanted = summed_residuals(first);
  ASSERT_FALSE(wanted.empty());
  struct Layout {
    int ranks, zero;
    const char* tp;
  };
  std::string from = first.checkpoint;
  for (const Layout& l : {Layout{2, 3, "1"}, {4, 1, "2"}, {3, 0, "1"}, {4, 2, "1"}}) {
    options = compressed_options(l.ranks, l.zero, "int8", 0);
    options.overrides.insert(options.overrides.end(), {str("parallel.tp=", l.tp), "train.batch_size=12"});
    options.load = from;
    options.save = path(str("to-", l.ranks, "-", l.zero));
    const Training moved = train_on_ranks(options);
    ASSERT_EQ(moved.errors, "") << l.ranks;
    const auto got = summed_residuals(moved);
    ASSERT_EQ(got.size(), wanted.size());
    for (const auto& [name, sum] : wanted)
      for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(got.at(name)[i], sum[i], 1e-9 + 1e-6 * std::abs(sum[i]));
    from = moved.checkpoint;
  }
  // A run without compression drops them; with it again, it begins with none.
  options = compressed_options(2, 1, "none", 0);
  options.load = from;
  options.save = path("without");
  const Training without = train_on_ranks(options);
  ASSERT_EQ(without.errors, "");
  EXPECT_TRUE(summed_residuals(without).empty());
  options = compressed_options(2, 1, "int8", 0);
  options.load = without.checkpoint;
  const Training again = train_on_ranks(options);
  ASSERT_EQ(again.errors, "");
  for (const auto& [name, sum] : summed_residuals(again))
    for (const double x : sum) EXPECT_EQ(x, 0) << name;
}

}  // namespace
}  // namespace ring::test
