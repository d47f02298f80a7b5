// Slow ranks, and ranks that only seem slow for a while.

#include "comm/pace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/comm/ranks.h"

namespace ring {
namespace {

using Ranks = std::vector<StepParts>;
const StepParts kUsual{.compute = 0.100, .data = 0.002, .network = 0.003};

Ranks usual(int n) { return Ranks(static_cast<std::size_t>(n), kUsual); }

TEST(SlowRankDetector, NamesARankAfterThreeWindows) {
  SlowRankDetector detector;
  Ranks ranks = usual(4);
  ranks[2].compute = 0.130;
  EXPECT_TRUE(detector.add_window(ranks).empty());
  EXPECT_TRUE(detector.add_window(ranks).empty());
  const auto found = detector.add_window(ranks);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_EQ(found[0].what, "compute");
  EXPECT_NEAR(found[0].speed, 0.105 / 0.135, 1e-9);
  EXPECT_DOUBLE_EQ(found[0].seconds, 0.130);
  EXPECT_DOUBLE_EQ(found[0].usual, 0.100);
  EXPECT_TRUE(detector.add_window(ranks).empty()) << "once";
}

TEST(SlowRankDetector, SaysWhatIsSlow) {
  for (const auto& [name, part] : {std::pair{"data", &StepParts::data}, std::pair{"network", &StepParts::network}}) {
    SlowRankDetector detector;
    Ranks ranks = usual(2);
    ranks[0].*part += 0.040;
    detector.add_window(ranks);
    detector.add_window(ranks);
    const auto found = detector.add_window(ranks);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].rank, 0);
    EXPECT_EQ(found[0].what, name);
  }
}

TEST(SlowRankDetector, OneGoodWindowResetsTheCount) {
  SlowRankDetector detector;
  Ranks slow = usual(3);
  slow[1].compute = 0.200;
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(detector.add_window(slow).empty());
    EXPECT_TRUE(detector.add_window(slow).empty());
    EXPECT_TRUE(detector.add_window(usual(3)).empty());
  }
}

TEST(SlowRankDetector, ShortStepsMayDifferByTwoMilliseconds) {
  SlowRankDetector detector;
  Ranks ranks(2, StepParts{.compute = 0.001});
  ranks[1].compute = 0.0029;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(detector.add_window(ranks).empty());
  ranks[1].compute = 0.0031;
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(detector.add_window(ranks).empty());
  EXPECT_EQ(detector.add_window(ranks).size(), 1u);
}

TEST(SlowRankDetector, NanCountsAsSlow) {
  SlowRankDetector detector;
  Ranks ranks = usual(3);
  ranks[2].compute = std::numeric_limits<double>::quiet_NaN();
  detector.add_window(ranks);
  detector.add_window(ranks);
  EXPECT_EQ(detector.add_window(ranks).size(), 1u);
}

// Medians of 20 steps whose times vary by 10 %. In one window of a hundred, a rank is disturbed.
TEST(SlowRankDetector, TenThousandCleanWindowsGiveAtMostOneAlarm) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> noise(0, 0.1 * 1.2533 / std::sqrt(20));
  std::bernoulli_distribution disturbed(0.01);
  SlowRankDetector detector;
  int alarms = 0;
  for (int w = 0; w < 10'000; ++w) {
    Ranks ranks = usual(8);
    for (StepParts& p : ranks) p.compute *= (1 + noise(random)) * (disturbed(random) ? 1.5 : 1);
    alarms += static_cast<int>(detector.add_window(ranks).size());
  }
  EXPECT_LE(alarms, 1);
}

// The ranks wait for each other. Every rank names only the rank that computes for long.
TEST(DistPace, TheRankThatOthersWaitForIsNamed) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  constexpr int kSteps = 20 * 3 + 1;
  std::vector<std::vector<SlowRank>> found(3);
  const auto wait = [&](Communicator& c) {
    Pace pace(c);
    for (int i = 0; i < kSteps; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(c.rank() == 1 ? 9 : 2));
      c.barrier().synchronize();
      for (const SlowRank& s : pace.on_step(0)) found[static_cast<std::size_t>(c.rank())].push_back(s);
      if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(9));  // between steps
      c.barrier().synchronize();
    }
  };
  const auto errors = test::run_ranks(3, wait, CommOptions{});  // over Gloo
  EXPECT_EQ(test::joined(errors), "");
  for (const auto& all : found) {
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].rank, 1);
    EXPECT_EQ(all[0].what, "compute");
    EXPECT_GT(all[0].seconds, 0.017);
    EXPECT_GE(all[0].usual, 0.002) << "what a rank waits for others is not taken off its own work";
  }
}

}  // namespace
}  // namespace ring
