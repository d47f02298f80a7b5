// Tests the times of a restart's stages.

#include "job/start_times.h"

#include <gtest/gtest.h>

#include "core/clock.h"

namespace ring {
namespace {

TEST(StartTimes, EachStageCountsFromThePreviousOne) {
  StartTimes t;
  t[StartStage::failed] = 5'000'000'000;
  t[StartStage::noticed] = 5'250'000'000;
  t[StartStage::spawned] = 6'000'000'000;  // `ended` was not seen
  t[StartStage::stepped] = 8'500'400'000;
  EXPECT_EQ(t.text(), "3.5 s: noticed 0.25, spawned 0.75, first step 2.5");
}

TEST(StartTimes, OnlyTheFirstTimeOfAStageCounts) {
  StartTimes t;
  EXPECT_TRUE(t.mark_reached(StartStage::met));
  const std::int64_t first = t[StartStage::met];
  EXPECT_GT(first, 0);
  EXPECT_FALSE(t.mark_reached(StartStage::met));
  EXPECT_EQ(t[StartStage::met], first);
  EXPECT_TRUE(t.mark_reached(StartStage::built));
  EXPECT_GE(t[StartStage::built], first);
}

TEST(StartTimes, AProcessThatTheLauncherDidNotSpawnCountsFromItsOwnStart) {
  EXPECT_GE(seconds_since_process_start(), 0);
  StartTimes t;
  t.mark_process_start();
  const std::int64_t start = t[StartStage::spawned];
  EXPECT_GT(start, 0);
  EXPECT_LE(start, nanoseconds_now());
  t[StartStage::spawned] = 7;
  t.mark_process_start();
  EXPECT_EQ(t[StartStage::spawned], 7);
}

}  // namespace
}  // namespace ring
