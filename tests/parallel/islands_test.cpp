// Islands that train alone (parallel.local_steps) in the real trainer: the outer update against its definition in
// float64, layouts inside islands, and checkpoints with the same and another number of islands.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "core/fields.h"
#include "engine/devices.h"
#include "tests/error_of.h"
#include "tests/parallel/training.h"
#include "tests/trainer/tiny.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;
using Settings = std::vector<std::string>;

constexpr double kLr = 0.7, kMomentum = 0.6;  // the defaults

class DistIslands : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("ringmaster-islands-" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Trains on `ranks` ranks in two islands unless `settings` say otherwise.
  Training train(int ranks, int steps, const Settings& settings, const std::string& load = "",
                 const std::string& save = "") const {
    TrainingOptions o{.ranks = ranks, .steps = steps, .load = load};
    o.overrides = {"parallel.islands=2", "train.log_interval=1"};
    o.overrides.insert(o.overrides.end(), settings.begin(), settings.end());
    if (!save.empty()) o.save = (folder_ / save).string();
    Training t = train_on_ranks(o);
    EXPECT_EQ(t.errors, "");
    return t;
  }

  fs::path folder_;
};

const std::vector<float>& tensor(const Training& t, const std::string& name) { return t.tensors.at(name); }

// Calls check(name, i) for each element of each trained weight.
template <class Fn>
void for_each_weight(const Training& t, const Fn& check) {
  int weights = 0;
  for (const auto& [name, values] : t.tensors) {
    if (!name.starts_with("model.")) continue;
    ++weights;
    for (std::size_t i = 0; i < values.size(); ++i) check(name.substr(6), i);
  }
  EXPECT_GT(weights, 10);
}

double mean_delta(const Training& theta, const Training& local, const std::string& name, std::size_t i) {
  const double outer = tensor(theta, "model." + name)[i];
  return (outer - tensor(local, "islands.0.model." + name)[i] + outer - tensor(local, "islands.1.model." + name)[i]) /
         2;
}

TEST_F(DistIslands, TwoOuterUpdatesFollowTheirDefinition) {
  const Training start = train(2, 0, {"parallel.local_steps=2"});
  const Training local = train(2, 2, {"parallel.local_steps=1000"});  // before the first combination
  const Training first = train(2, 2, {"parallel.local_steps=2"}, "", "first");
  const Training later = train(2, 2, {"parallel.local_steps=1000"}, first.checkpoint);
  const Training second = train(2, 4, {"parallel.local_steps=2"});
  for_each_weight(start, [&](const std::string& name, std::size_t i) {
    ASSERT_EQ(tensor(local, "model." + name)[i], tensor(start, "model." + name)[i]);
    const double a = mean_delta(start, local, name, i);
    const double theta = tensor(start, "model." + name)[i] - kLr * (a + kMomentum * a);
    ASSERT_NEAR(tensor(first, "outer.momentum." + name)[i], a, 1e-7) << name;
    ASSERT_NEAR(tensor(first, "model." + name)[i], theta, 2e-7 + 1e-6 * std::abs(theta)) << name;
    for (const char* island : {"islands.0.model.", "islands.1.model."})
      ASSERT_EQ(tensor(first, island + name)[i], tensor(first, "model." + name)[i]) << name;
    const double b = mean_delta(first, later, name, i);
    const double m = kMomentum * tensor(first, "outer.momentum." + name)[i] + b;
    ASSERT_NEAR(tensor(second, "outer.momentum." + name)[i], m, 2e-7) << name;
    ASSERT_NEAR(tensor(second, "model." + name)[i], tensor(first, "model." + name)[i] - kLr * (b + kMomentum * m), 5e-7)
        << name;
  });
}

// average = mean of (difference - what the message left out), for both islands.
TEST_F(DistIslands, QuantizedMessagesLoseNothing) {
  const Training start = train(2, 0, {"parallel.local_steps=2"});
  const Training local = train(2, 2, {"parallel.local_steps=1000"});
  for (const char* bits : {"8", "4", "2"}) {
    const Training t = train(2, 2, {"parallel.local_steps=2", std::string("parallel.outer_bits=") + bits});
    double left = 0;
    for_each_weight(start, [&](const std::string& name, std::size_t i) {
      const double residual =
          (tensor(t, "islands.0.residual." + name)[i] + tensor(t, "islands.1.residual." + name)[i]) / 2;
      left += std::abs(residual);
      ASSERT_NEAR(tensor(t, "outer.momentum." + name)[i], mean_delta(start, local, name, i) - residual, 1e-7) << name;
      ASSERT_EQ(tensor(t, "islands.0.model." + name)[i], tensor(t, "islands.1.model." + name)[i]);
    });
    EXPECT_GT(left, 0) << bits;
  }
}

TEST_F(DistIslands, ADelayedFragmentKeepsWhatTheNextStepChanged) {
  const Training start = train(2, 0, {"parallel.local_steps=2"});
  const Training sent = train(2, 2, {"parallel.local_steps=1000"});
  const Training now = train(2, 3, {"parallel.local_steps=1000"});
  const Training t = train(2, 3, {"parallel.local_steps=2", "parallel.outer_delay=1"});
  for_each_weight(start, [&](const std::string& name, std::size_t i) {
    const double a = mean_delta(start, sent, name, i);
    const double theta = tensor(start, "model." + name)[i] - kLr * (1 + kMomentum) * a;
    ASSERT_NEAR(tensor(t, "model." + name)[i], theta, 2e-7 + 1e-6 * std::abs(theta)) << name;
    for (const std::string island : {"islands.0.model.", "islands.1.model."})
      ASSERT_NEAR(tensor(t, island + name)[i], theta + tensor(now, island + name)[i] - tensor(sent, island + name)[i],
                  3e-7 + 1e-6 * std::abs(theta))
          << name;
  });
}

// With two fragments and three steps, one fragment is combined after step 1, the other after step 3.
TEST_F(DistIslands, FragmentsAreCombinedAtDifferentSteps) {
  const auto combined = [&](int steps) {
    const Training t = train(2, steps, {"parallel.local_steps=3", "parallel.outer_fragments=2"});
    std::map<std::string, bool> equal;
    for (const auto& [name, values] : t.tensors)
      if (name.starts_with("model.")) equal[name] = tensor(t, "islands.0." + name) == tensor(t, "islands.1." + name);
    return equal;
  };
  const std::map<std::string, bool> first = combined(1), second = combined(2), third = combined(3);
  EXPECT_TRUE(first.at("model.embedding.tokens.weight"));
  EXPECT_FALSE(first.at("model.head.weight"));
  EXPECT_FALSE(second.at("model.embedding.tokens.weight"));
  EXPECT_TRUE(third.at("model.head.weight"));
  for (const auto& [name, equal] : third) EXPECT_NE(equal, first.at(name)) << name;
}

// One island with an outer step of size 1 and no momentum takes over the weights as they are.
TEST_F(DistIslands, OneIslandCanTrainAsWithoutOuterOptimizer) {
  const Training plain = train(1, 4, {"parallel.islands=1"});
  const Training outer =
      train(1, 4, {"parallel.islands=1", "parallel.local_steps=2", "parallel.outer_lr=1", "parallel.outer_momentum=0"});
  EXPECT_LT(largest_loss_difference(plain, outer), 1e-5);
  for (const auto& [name, values] : plain.tensors) {
    if (!name.starts_with("model.")) continue;
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(tensor(outer, name)[i], values[i], 1e-5) << name;
  }
}

class DistIslandLayouts : public DistIslands, public testing::WithParamInterface<Layout> {};

TEST_P(DistIslandLayouts, IslandsOfSeveralRanksTrainAsIslandsOfOne) {
  // With the default epsilon, Adam turns the rounding errors of tiny gradients into steps of full size.
  const Settings common = {"parallel.local_steps=2", "parallel.outer_fragments=2", "optimizer.eps=1e-3"};
  const auto with = [&](Settings more) {
    more.insert(more.begin(), common.begin(), common.end());
    return more;
  };
  const Training one = train(2, 5, with({}));
  const Training several = train(4, 5, with(GetParam().overrides));
  EXPECT_LT(largest_loss_difference(one, several), 1e-5);
  EXPECT_LT(largest_difference(one, several), 1e-5);
  EXPECT_LT(largest_difference(one, several, "islands.1.model."), 1e-5);
  EXPECT_LT(largest_difference(one, several, "outer."), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Layouts, DistIslandLayouts,
                         testing::Values(Layout{"dp", 4, {"train.micro_batch=2"}},
                                         Layout{"zero1", 4, {"train.micro_batch=2", "parallel.zero=1"}},
                                         Layout{"zero3", 4, {"train.micro_batch=2", "parallel.zero=3"}},
                                         Layout{"tp", 4, {"parallel.tp=2"}}, Layout{"cp", 4, {"parallel.cp=2"}}),
                         [](const auto& info) { return info.param.name; });

// Saved where a fragment is due, so that its message is sent after the checkpoint.
TEST_F(DistIslands, AResumedRunIsBitIdentical) {
  const Settings settings = {"parallel.local_steps=3", "parallel.outer_fragments=2",
                             "parallel.outer_delay=1", "parallel.outer_bits=2",
                             "parallel.zero=1",        "train.micro_batch=2"};
  const Training straight = train(4, 7, settings);
  const Training begun = train(4, 4, settings, "", "begun");
  const Training resumed = train(4, 3, settings, begun.checkpoint);
  EXPECT_GT(straight.tensors.size(), 100u);
  ASSERT_EQ(straight.tensors.size(), resumed.tensors.size());
  for (const auto& [name, values] : straight.tensors) EXPECT_EQ(tensor(resumed, name), values) << name;
}

// The last step combines all fragments at once. If the run is extended, the next step must not combine them again.
TEST_F(DistIslands, AnExtendedRunHasNoExtraOuterUpdate) {
  const Settings settings = {"parallel.local_steps=2", "parallel.outer_delay=1", "train.steps=4"};
  const Training ended = train(2, 4, settings, "", "ended");
  const Training extended = train(2, 1, {settings[0], settings[1], "train.steps=9"}, ended.checkpoint);
  for (const auto& [name, values] : ended.tensors) {
    if (name.starts_with("outer.") || name.starts_with("model.")) {
      EXPECT_EQ(tensor(extended, name), values) << name;
    }
  }
  EXPECT_NE(tensor(extended, "islands.0.model.head.weight"), tensor(ended, "islands.0.model.head.weight"));
}

// Removes outer.combined_step from the checkpoint. Earlier versions did not save it.
void remove_combined_step(const fs::path& checkpoint) {
  Manifest m = read_manifest(checkpoint);
  EXPECT_EQ(m.values.erase("outer.combined_step"), 1u);
  write_text(checkpoint / kManifestName, to_text(m));
}

TEST_F(DistIslands, CheckpointsWithoutTheCombinedStepContinueAlike) {
  const Settings settings = {"parallel.local_steps=2", "parallel.outer_delay=1"};
  const auto with_steps = [&](const char* steps) { return Settings{settings[0], settings[1], steps}; };
  for (const char* steps : {"train.steps=4", "train.steps=8"}) {  // after step 4, the first run is complete
    const Training begun = train(2, 4, with_steps(steps), "", steps);
    const Training resumed = train(2, 1, with_steps("train.steps=9"), begun.checkpoint);
    remove_combined_step(begun.checkpoint);
    const Training earlier = train(2, 1, with_steps("train.steps=9"), begun.checkpoint);
    EXPECT_EQ(earlier.tensors, resumed.tensors) << steps;
    EXPECT_EQ(earlier.losses, resumed.losses) << steps;
  }
}

TEST_F(DistIslands, NewIslandsStartFromTheOuterWeightsAndTheMomentsOfIsland0) {
  const Settings settings = {"parallel.local_steps=2", "parallel.outer_bits=4"};
  const Training two = train(2, 3, settings, "", "two");
  const Training four =
      train(4, 0, {"parallel.islands=4", "train.micro_batch=2", settings[0], settings[1]}, two.checkpoint);
  for (const auto& [name, values] : two.tensors) {
    EXPECT_EQ(tensor(four, name), values) << name;  // outer state, and islands 0 and 1
    if (name.starts_with("model.") || name.starts_with("optimizer.")) {
      EXPECT_EQ(tensor(four, "islands.3." + name), values) << name;
    }
  }
  EXPECT_NE(tensor(two, "islands.1.model.head.weight"), tensor(two, "model.head.weight"));
  EXPECT_EQ(tensor(four, "islands.2.residual.head.weight"),
            std::vector<float>(tensor(two, "model.head.weight").size(), 0.0f));
}

TEST_F(DistIslands, RunsResumeWithOneIslandOrWithoutAndTheOtherWay) {
  const Settings settings = {"parallel.local_steps=2"};
  const Training two = train(2, 3, settings, "", "two");
  const Training one = train(1, 0, {"parallel.islands=1", settings[0]}, two.checkpoint);
  EXPECT_EQ(tensor(one, "islands.0.model.head.weight"), tensor(two, "islands.0.model.head.weight"));
  const Training plain = train(1, 0, {"parallel.islands=1"}, two.checkpoint, "plain");
  for (const auto& [name, values] : plain.tensors) EXPECT_EQ(values, tensor(two, name)) << name;
  const Training again = train(2, 0, settings, plain.checkpoint);
  for (const auto& [name, values] : plain.tensors) {
    EXPECT_EQ(values, tensor(again, name)) << name;
    EXPECT_EQ(values, tensor(again, (name.starts_with("model.")       ? "islands.1."
                                     : name.starts_with("optimizer.") ? "islands.1."
                                                                      : "") +
                                        name))
        << name;
  }
}

TEST_F(DistIslands, ValidationUsesTheOuterWeights) {
  TrainingOptions o{.ranks = 2, .steps = 3, .validate = true};
  o.overrides = {"parallel.islands=2", "train.log_interval=1", "parallel.local_steps=2"};
  o.save = (folder_ / "outer").string();
  const Training islands = train_on_ranks(o);
  ASSERT_EQ(islands.errors, "");
  TrainingOptions alone{.ranks = 1, .steps = 0, .load = islands.checkpoint, .validate = true};
  const Training loaded = train_on_ranks(alone);
  ASSERT_EQ(loaded.errors, "");
  EXPECT_NEAR(loaded.validation, islands.validation, 1e-5);
}

// Over all islands, each replica reads its own share: no sample twice, none left out.
TEST(Islands, ReplicasOfAllIslandsDivideTheSamples) {
  Config c = tiny_config();
  override_config(c, {"parallel.islands=2", "parallel.local_steps=2", "parallel.tp=2", "train.micro_batch=2"});
  std::map<int, int> ranks;
  for (int r = 0; r < 8; ++r) {
    const std::unique_ptr<Mesh> mesh = Mesh::fake(mesh_layout(plan_of(c, 8), {}), r);
    const LoaderOptions o = loader_options(c, *mesh);
    EXPECT_EQ(o.world, 4);
    EXPECT_EQ(o.rank, r / 2);
    ++ranks[o.rank];
  }
  EXPECT_EQ(ranks, (std::map<int, int>{{0, 2}, {1, 2}, {2, 2}, {3, 2}}));
}

TEST(Islands, SettingsThatCannotWorkAreRefused) {
  const auto problem = [](Settings settings) {
    return error_of([&] {
      Config c = tiny_config();
      override_config(c, settings);
    });
  };
  const Settings two = {"parallel.islands=2", "parallel.local_steps=30"};
  const auto with = [&](const char* more) { return Settings{two[0], two[1], more}; };
  EXPECT_EQ(problem(two), "");
  EXPECT_NE(problem({two[0]}).find("parallel.local_steps steps, but that is 0"), std::string::npos);
  EXPECT_NE(problem(with("train.ema=0.9")).find("train.ema"), std::string::npos);
  EXPECT_NE(problem(with("optimizer.offload=all")).find("optimizer.offload"), std::string::npos);
  EXPECT_NE(problem(with("parallel.tp=auto")).find("auto"), std::string::npos);
  EXPECT_NE(problem(with("train.on_bad_step=rollback")).find("rollback"), std::string::npos);
  EXPECT_NE(problem(with("parallel.outer_fragments=31")).find("at most"), std::string::npos);
  EXPECT_NE(problem(with("parallel.outer_bits=3")).find("32, 8, 4 or 2"), std::string::npos);
  EXPECT_NE(problem({two[0], two[1], "train.steps=0", "train.minutes=1"}).find("train.steps"), std::string::npos);
  Config c = tiny_config();
  override_config(c, two);
  EXPECT_NE(error_of([&] { plan_of(c, 3); }).find("does not divide the 3 processes"), std::string::npos);
}

}  // namespace
}  // namespace ring::test
