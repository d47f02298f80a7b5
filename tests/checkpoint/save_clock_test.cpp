// When a checkpoint is due, and how failures are counted.
#include "checkpoint/save_clock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "checkpoint/failures.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

TEST(SaveClock, MinutesCountFromTheLatestSave) {
  CheckpointConfig config;
  EXPECT_FALSE(SaveClock(config, 0).due(1e9, 1e9));  // due by steps alone
  config.minutes = 2;
  SaveClock clock(config, 1000);
  EXPECT_FALSE(clock.due(1119, 0));
  EXPECT_TRUE(clock.due(1120, 0));
  clock.began(1500);
  EXPECT_FALSE(clock.due(1619, 0));
  EXPECT_TRUE(clock.due(1620, 0));
}

CheckpointConfig automatic(double mtbf_hours) {
  CheckpointConfig config;
  config.automatic = true;
  config.mtbf_hours = mtbf_hours;
  return config;
}

// Returns the share of time that is lost with a save every `between` seconds: to saves, and to failures. The clock's
// interval must minimize it.
double lost(double cost, double mtbf, double between) { return cost / between + between / (2 * mtbf); }

TEST(SaveClock, AutoMinimizesTheLoss) {
  const CheckpointConfig config = automatic(10);
  for (const double cost : {0.1, 2.0, 60.0}) {
    SaveClock clock(config, 0);
    clock.began(0);
    clock.on_save_end(cost);
    const double between = clock.save_interval(0);
    for (const double other : {0.5, 0.9, 1.1, 2.0})
      EXPECT_LT(lost(cost, 36000, between), lost(cost, 36000, other * between)) << cost << " " << other;
    EXPECT_FALSE(clock.due(between - 0.01, 0));
    EXPECT_TRUE(clock.due(between + 0.01, 0));
  }
}

// A run that is killed in its first minute has a checkpoint, whatever later saves cost.
TEST(SaveClock, TheFirstSaveComesEarlyAndIsMeasured) {
  const CheckpointConfig config = automatic(24);
  SaveClock clock(config, 100);
  EXPECT_FALSE(clock.due(105, 0));
  EXPECT_TRUE(clock.due(111, 0));
  clock.began(111);
  clock.on_save_end(2);
  EXPECT_GT(clock.save_interval(0), 500);  // sqrt(2 x 2 x 86400) = 588
  EXPECT_LT(SaveClock(automatic(0.0001), 0).save_interval(10), 1) << "machines that fail all the time save sooner";
}

TEST(SaveClock, SlowerStepsAreACost) {
  const CheckpointConfig config = automatic(10);
  SaveClock clock(config, 0);
  for (int i = 0; i < 100; ++i) clock.on_step(1, false);
  clock.began(0);
  for (int i = 0; i < 4; ++i) clock.on_step(1.5, true);
  clock.on_save_end(0.5);
  EXPECT_NEAR(clock.cost(), 2.5, 1e-9);
  clock.began(10);
  for (int i = 0; i < 4; ++i) clock.on_step(1, true);
  clock.on_save_end(0.5);
  EXPECT_NEAR(clock.cost(), 1.5, 1e-9);  // the mean of 2.5 and 0.5: the latest counts most
}

TEST(SaveClock, FailuresAndFailureFreeHoursCorrectTheMean) {
  const CheckpointConfig config = automatic(10);
  SaveClock clock(config, 0);
  EXPECT_EQ(clock.mtbf_seconds(0), 36000);
  EXPECT_EQ(clock.mtbf_seconds(36000), 72000);  // ten hours without a failure
  clock.failures(3);
  EXPECT_EQ(clock.mtbf_seconds(36000), 18000);
}

TEST(SaveClock, AutoStaysBelowTheMean) {
  const CheckpointConfig config = automatic(0.01);  // 36 s
  SaveClock clock(config, 0);
  EXPECT_GT(clock.save_interval(0), 0);
  EXPECT_LE(clock.save_interval(0), 36);
  clock.on_save_end(1000);
  EXPECT_EQ(clock.save_interval(0), 36);
  clock.on_save_end(0);
  EXPECT_TRUE(std::isfinite(clock.save_interval(0)));
}

class FailureFile : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::string file() const { return (folder_ / "failures.json").string(); }
  fs::path folder_ = fs::temp_directory_path() / ("ringmaster-failures-" + std::to_string(getpid()));
};

TEST_F(FailureFile, CountsProcessesThatFailed) {
  EXPECT_EQ(Failures(file(), false).count(), 0);
  EXPECT_EQ(Failures(file(), false).count(), 1);
  Failures third(file(), false);
  EXPECT_EQ(third.count(), 2);
  third.on_clean_end();
  EXPECT_EQ(Failures(file(), false).count(), 2);
  EXPECT_EQ(Failures(file(), true).count(), 0);
  EXPECT_EQ(Failures(file(), false).count(), 1);
}

TEST_F(FailureFile, DamageDoesNotCountAsAFailure) {
  for (const char* text : {"", "{", "{\"failures\": -1, \"running\": false}", "{\"failures\": 1}", "[]"}) {
    std::ofstream(file()) << text;
    EXPECT_EQ(Failures(file(), false).count(), 0) << text;
  }
}

}  // namespace
}  // namespace ring
