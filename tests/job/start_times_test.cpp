// Tests the times of a restart's stages.

#include "job/start_times.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace ring
