#include "launcher/restart_budget.h"

#include <gtest/gtest.h>

namespace ring {
namespace {

TEST(RestartBudget, ProgressRestoresIt) {
  RestartBudget budget(1);
  for (std::int64_t step = 10; step < 100; step += 10) EXPECT_EQ(budget.request_restart(step), "") << step;
  EXPECT_NE(budget.request_restart(90).find("restarted 1 time without progress"), std::string::npos);
}

TEST(RestartBudget, ThreeFailuresAtTheSameStepEndIt) {
  RestartBudget budget(100);
  EXPECT_EQ(budget.request_restart(7), "");
  EXPECT_EQ(budget.request_restart(7), "");
  EXPECT_NE(budget.request_restart(7).find("after step 7"), std::string::npos);
}

// The message for attempts that end before they take a step does not claim that the job never took one.
TEST(RestartBudget, ThreeFailuresBeforeAStepEndIt) {
  RestartBudget budget(100), fresh(100);
  EXPECT_EQ(budget.request_restart(150), "");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(budget.request_restart(0) + fresh.request_restart(0), "");
  EXPECT_NE(budget.request_restart(0).find("reached step 150"), std::string::npos);
  EXPECT_NE(fresh.request_restart(0).find("before its first step"), std::string::npos);
}

TEST(RestartBudget, ThreeAttemptsWithoutProgressEndIt) {
  RestartBudget budget(100);
  EXPECT_EQ(budget.request_restart(50), "");
  EXPECT_EQ(budget.request_restart(48), "");
  EXPECT_EQ(budget.request_restart(49), "");
  EXPECT_NE(budget.request_restart(50).find("no further than step 50"), std::string::npos);
  RestartBudget other(100);
  for (const int step : {50, 48, 49, 51, 48, 49}) EXPECT_EQ(other.request_restart(step), "") << step;
}

TEST(RestartBudget, UsingLessMemoryIsProgressForALimitedTime) {
  RestartBudget budget(1);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(budget.request_restart(5, true), "") << i;
  EXPECT_EQ(budget.request_restart(5, true), "");  // the one restart that the budget allows anyway
  EXPECT_NE(budget.request_restart(5, true), "");
  RestartBudget other(1);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(other.request_restart(5 + i / 50, true), "") << i;
}

TEST(RestartBudget, ZeroAllowsNoRestart) {
  EXPECT_NE(RestartBudget(0).request_restart(1000), "");
  EXPECT_NE(RestartBudget(0).request_restart(1000, true), "");
}

}  // namespace
}  // namespace ring
