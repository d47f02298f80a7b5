#pragma once
// Compares a layout with one process that trains with the same settings and keeps all activations.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <initializer_list>

#include "comm/gloo/gloo.h"
#include "tests/parallel/training.h"

namespace ring::test {

using Overrides = std::vector<std::string>;

inline const Overrides kRing = {"parallel.cp=2", "parallel.cp_schedule=ring"};
inline const std::string kGather = "parallel.cp_schedule=gather";

// Returns a short run with dropout and this attention; layouts can divide the model's eight heads. `eps` is larger than
// the rounding of gradients: with the default, AdamW takes whole steps along gradients that are nothing but rounding.
inline TrainingOptions short_run(int ranks, const Overrides& attention, const Overrides& more) {
  TrainingOptions o;
  o.ranks = ranks;
  o.steps = 4;
  o.overrides = {"model.context=320", "model.heads=8",      "model.kv_heads=4",    "model.head_dim=8",
                 "model.dropout=0.1", "train.batch_size=4", "train.micro_batch=2", "optimizer.eps=1e-6"};
  for (const Overrides& some : {attention, more}) o.overrides.insert(o.overrides.end(), some.begin(), some.end());
  o.validate = true;
  return o;
}

class LayoutTest : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

// Bounds for f32 sums in a different order, for any layout.
inline constexpr double kLoss = 1e-5, kWeights = 2e-3, kIndexLoss = 1e-3;

// options(ranks, overrides) returns the run.
template <class Options>
void expect_equal_to_one_process(const Layout& layout, const Options& options) {
  Overrides alone;
  for (const std::string& o : layout.overrides)
    if (!o.starts_with("parallel.") && !o.starts_with("train.recompute")) alone.push_back(o);
  const Training one = train_on_ranks(options(1, alone)),
                 many = train_on_ranks(options(layout.ranks, layout.overrides));
  ASSERT_EQ(one.errors + many.errors, "");
  EXPECT_LT(one.losses.back(), one.losses.front());
  EXPECT_LE(largest_loss_difference(one, many), kLoss);
  EXPECT_LE(largest_difference(one, many), kWeights);
  ASSERT_EQ(one.index_losses.size(), many.index_losses.size());
  for (std::size_t i = 0; i < one.index_losses.size(); ++i)
    EXPECT_NEAR(one.index_losses[i], many.index_losses[i], kIndexLoss * std::abs(one.index_losses[i])) << i;
  EXPECT_LE(std::abs(one.validation - many.validation), kLoss * one.validation);
}

// Expects that three steps take the memory that was predicted, within 2 %, for each of these values of train.recompute.
// options(steps, overrides) returns the run.
template <class Options>
void expect_predicted_memory(const Options& options, std::initializer_list<const char*> recomputed) {
  for (const char* recompute : recomputed) {
    TrainingOptions o = options(3, {std::string("train.recompute=") + recompute});
    o.dry = true;
    const Training t = train_on_ranks(o);
    ASSERT_EQ(t.errors, "") << recompute;
    const auto took = static_cast<double>(t.slabs.at(0));
    EXPECT_GT(took, 0) << "no two steps took the same";
    EXPECT_NEAR(static_cast<double>(t.dry_slabs.at(0)), took, 0.02 * took) << recompute;
  }
}

// Expects that a run that is saved after `steps` steps and resumed by a new trainer is bit-identical to an
// uninterrupted run. name: name of a folder.
template <class Options>
void expect_resume_is_exact(const Options& options, int steps, const std::string& name) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / name;
  std::filesystem::remove_all(folder);
  const Training whole = train_on_ranks(options(1, {}));
  TrainingOptions first = options(1, {}), second = options(1, {});
  second.steps = first.steps - steps;
  first.steps = steps;
  first.save = folder.string();
  const Training half = train_on_ranks(first);
  ASSERT_EQ(half.errors, "");
  second.load = half.checkpoint;
  const Training rest = train_on_ranks(second);
  ASSERT_EQ(whole.errors + rest.errors, "");
  EXPECT_EQ(rest.losses, (std::vector<double>{whole.losses.begin() + steps, whole.losses.end()})) << steps;
  EXPECT_EQ(largest_difference(whole, rest), 0);
  EXPECT_EQ(rest.validation, whole.validation);
}

}  // namespace ring::test
