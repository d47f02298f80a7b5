#include "optim/schedule.h"

#include <gtest/gtest.h>

namespace ring {
namespace {

ScheduleConfig make(ScheduleKind kind) {
  ScheduleConfig c;
  c.kind = kind;
  c.warmup_steps = 100;
  c.final_lr = 0.1;
  return c;
}

TEST(Schedule, WarmsUpLinearlyToThePeak) {
  for (ScheduleKind kind : {ScheduleKind::constant, ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::wsd}) {
    const ScheduleConfig c = make(kind);
    EXPECT_DOUBLE_EQ(schedule_factor(c, 0, 1000), 0.01);
    EXPECT_DOUBLE_EQ(schedule_factor(c, 49, 1000), 0.5);
    EXPECT_DOUBLE_EQ(schedule_factor(c, 99, 1000), 1.0);
    EXPECT_DOUBLE_EQ(schedule_factor(c, 100, 1000), 1.0);
  }
}

TEST(Schedule, EndsWhereEachKindSays) {
  EXPECT_DOUBLE_EQ(schedule_factor(make(ScheduleKind::constant), 999, 1000), 1.0);
  EXPECT_NEAR(schedule_factor(make(ScheduleKind::cosine), 550, 1000), 0.55, 1e-12);  // half way
  EXPECT_NEAR(schedule_factor(make(ScheduleKind::cosine), 1000, 1000), 0.1, 1e-12);
  EXPECT_NEAR(schedule_factor(make(ScheduleKind::linear), 550, 1000), 0.55, 1e-12);
  EXPECT_NEAR(schedule_factor(make(ScheduleKind::linear), 1000, 1000), 0.1, 1e-12);
  ScheduleConfig wsd = make(ScheduleKind::wsd);
  EXPECT_DOUBLE_EQ(schedule_factor(wsd, 799, 1000), 1.0);  // the last fifth decays
  EXPECT_NEAR(schedule_factor(wsd, 900, 1000), 0.55, 1e-12);
  wsd.decay_steps = 400;
  EXPECT_DOUBLE_EQ(schedule_factor(wsd, 600, 1000), 1.0);
  EXPECT_NEAR(schedule_factor(wsd, 800, 1000), 0.55, 1e-12);
}

TEST(Schedule, NeverLeavesItsRangeOrRisesAfterTheWarmUp) {
  for (ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::wsd}) {
    double before = 1.0;
    for (std::int64_t step = 100; step < 1200; ++step) {  // also beyond the end
      const double f = schedule_factor(make(kind), step, 1000);
      EXPECT_LE(f, before);
      EXPECT_GE(f, 0.1 - 1e-12);
      before = f;
    }
  }
}

}  // namespace
}  // namespace ring
