// The average of the weights (train.ema) against the recurrence over the weights after each step, in every layout, and
// with checkpoints.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "comm/gloo/gloo.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

constexpr double kDecay = 0.25;

TrainingOptions options(const std::vector<std::string>& layout, int ranks, int steps, double decay = kDecay) {
  TrainingOptions o;
  o.ranks = ranks;
  o.steps = steps;
  o.overrides = {
      "model.heads=8",       "model.kv_heads=4",  "model.head_dim=8",        "train.batch_size=8",
      "train.micro_batch=1", "optimizer.lr=0.01", "schedule.warmup_steps=2", "schedule.final_weight_decay=0.5"};
  if (decay > 0) o.overrides.push_back("train.ema=" + std::to_string(decay));
  o.overrides.insert(o.overrides.end(), layout.begin(), layout.end());
  return o;
}

using Tensors = std::map<std::string, std::vector<double>>;

Tensors weights_of(const Training& t) {
  Tensors out;
  for (const auto& [name, values] : t.tensors)
    if (name.starts_with("model.")) out[name.substr(6)] = {values.begin(), values.end()};
  return out;
}

// Adds a step to the average. step: number of previous steps.
void average(Tensors& mean, const Tensors& weights, int step, double decay = kDecay) {
  const double d = std::min(decay, (1.0 + step) / (10.0 + step));
  for (auto& [name, values] : mean)
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = d * values[i] + (1 - d) * weights.at(name)[i];
}

void expect_average(const Training& t, const Tensors& want) {
  ASSERT_EQ(t.errors, "");
  for (const auto& [name, values] : want) {
    const std::vector<float>& got = t.tensors.at("ema." + name);
    ASSERT_EQ(got.size(), values.size()) << name;
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], values[i], 1e-6) << name << " " << i;
  }
}

class DistWeightAverage : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(All, DistWeightAverage,
                         testing::Values(Layout{"one", 1, {}}, Layout{"dp2_zero0", 2, {"parallel.zero=0"}},
                                         Layout{"dp4_zero1", 4, {"parallel.zero=1"}},
                                         Layout{"dp4_zero2", 4, {"parallel.zero=2"}},
                                         Layout{"dp2_zero3", 2, {"parallel.zero=3"}},
                                         Layout{"tp2_zero3", 4, {"parallel.tp=2", "parallel.zero=3"}},
                                         Layout{"cp2_zero1", 4, {"parallel.cp=2", "parallel.zero=1"}},
                                         Layout{"offloaded_states", 1, {"optimizer.offload=states"}}),
                         [](const auto& info) { return info.param.name; });

// Repeats the run, ending after each of its steps.
TEST_P(DistWeightAverage, IsTheRecurrenceOverTheSteps) {
  const auto run = [](int steps, double decay, const Layout& l = GetParam()) {
    TrainingOptions o = options(l.overrides, l.ranks, steps, decay);
    o.validate = true;
    return train_on_ranks(o);
  };
  static const Training one = run(4, kDecay, {"one", 1, {}});
  Tensors mean = weights_of(run(0, 0));
  for (int step = 0; step < 4; ++step) {
    const Training without = run(step + 1, 0);
    ASSERT_EQ(without.errors, "");
    average(mean, weights_of(without), step);
    if (step < 3) continue;
    const Training with = run(step + 1, kDecay);
    expect_average(with, mean);
    Training rest = with;
    std::erase_if(rest.tensors, [](const auto& t) { return t.first.starts_with("ema."); });
    EXPECT_TRUE(same_bits(without, rest)) << "the average shows";
    EXPECT_EQ(with.validation, without.validation);
    EXPECT_NEAR(with.average_validation, one.average_validation, 1e-5);
    EXPECT_GT(std::abs(with.average_validation - with.validation), 1e-4) << "of the weights themselves";
  }
}

class WeightAverageCheckpoints : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
    folder_ = (std::filesystem::temp_directory_path() / ("ringmaster-average-" + std::to_string(getpid()))).string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  Training saved(const std::vector<std::string>& layout, int ranks, double decay) const {
    TrainingOptions o = options(layout, ranks, 3, decay);
    o.save = folder_;
    return train_on_ranks(o);
  }
  static Training loaded(const std::vector<std::string>& layout, int ranks, double decay, const Training& from,
                         int steps = 2) {
    TrainingOptions o = options(layout, ranks, steps, decay);
    o.load = from.checkpoint;
    return train_on_ranks(o);
  }
  std::string folder_;
};

TEST_F(WeightAverageCheckpoints, ResumeWithTheSameBits) {
  const std::vector<std::string> layout = {"parallel.zero=1"};
  const Training straight = train_on_ranks(options(layout, 2, 5)), half = saved(layout, 2, kDecay);
  ASSERT_EQ(straight.errors, "");
  ASSERT_EQ(half.errors, "");
  const Training whole = loaded(layout, 2, kDecay, half);
  ASSERT_EQ(whole.errors, "");
  for (const char* prefix : {"model.", "optimizer.", "ema."})
    for (const auto& [name, values] : straight.tensors) {
      if (!name.starts_with(prefix)) continue;
      EXPECT_EQ(whole.tensors.at(name), values) << name;
    }
}

TEST_F(WeightAverageCheckpoints, ResumeInAnotherLayout) {
  const Training half = saved({"parallel.zero=3", "parallel.tp=2"}, 4, kDecay);
  ASSERT_EQ(half.errors, "");
  const Training one = loaded({}, 1, kDecay, half, 0), two = loaded({"parallel.zero=2"}, 2, kDecay, half, 0);
  for (const Training* t : {&one, &two}) {
    ASSERT_EQ(t->errors, "");
    for (const auto& [name, values] : half.tensors) EXPECT_EQ(t->tensors.at(name), values) << name;
  }
}

TEST_F(WeightAverageCheckpoints, StartWithTheWeightsIfThereIsNoAverage) {
  const Training half = saved({}, 1, 0);
  ASSERT_EQ(half.errors, "");
  Tensors mean = weights_of(half);
  average(mean, weights_of(loaded({}, 1, 0, half, 1)), 3);
  expect_average(loaded({}, 1, kDecay, half, 1), mean);
}

TEST_F(WeightAverageCheckpoints, DropAnAverageThatIsNotConfigured) {
  const Training half = saved({}, 1, kDecay);
  ASSERT_EQ(half.errors, "");
  const Training whole = loaded({}, 1, 0, half), straight = train_on_ranks(options({}, 1, 5, 0));
  ASSERT_EQ(whole.errors, "");
  EXPECT_EQ(whole.tensors, straight.tensors);
}

}  // namespace
}  // namespace ring::test
