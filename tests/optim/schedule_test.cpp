#include "optim/schedule.h"

#include <gtest/gtest.h>

#include "core/setting_problem.h"

namespace ring {
namespace {

ScheduleConfig make_schedule(ScheduleKind kind) {
  ScheduleConfig c;
  c.kind = kind;
  c.warmup_steps = 100;
  c.final_lr = 0.1;
  return c;
}

TEST(Schedule, WarmsUpLinearlyToThePeak) {
  for (ScheduleKind kind : {ScheduleKind::constant, ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::wsd}) {
    const ScheduleConfig c = make_schedule(kind);
    EXPECT_DOUBLE_EQ(schedule_factor(c, 0, 1000), 0.01);
    EXPECT_DOUBLE_EQ(schedule_factor(c, 49, 1000), 0.5);
    EXPECT_DOUBLE_EQ(schedule_factor(c, 99, 1000), 1.0);
    EXPECT_DOUBLE_EQ(schedule_factor(c, 100, 1000), 1.0);
  }
}

TEST(Schedule, EndsAtTheValueOfEachKind) {
  EXPECT_DOUBLE_EQ(schedule_factor(make_schedule(ScheduleKind::constant), 999, 1000), 1.0);
  EXPECT_NEAR(schedule_factor(make_schedule(ScheduleKind::cosine), 550, 1000), 0.55, 1e-12);  // half way
  EXPECT_NEAR(schedule_factor(make_schedule(ScheduleKind::cosine), 1000, 1000), 0.1, 1e-12);
  EXPECT_NEAR(schedule_factor(make_schedule(ScheduleKind::linear), 550, 1000), 0.55, 1e-12);
  EXPECT_NEAR(schedule_factor(make_schedule(ScheduleKind::linear), 1000, 1000), 0.1, 1e-12);
  ScheduleConfig wsd = make_schedule(ScheduleKind::wsd);
  EXPECT_DOUBLE_EQ(schedule_factor(wsd, 799, 1000), 1.0);  // the last fifth decays
  EXPECT_NEAR(schedule_factor(wsd, 900, 1000), 0.55, 1e-12);
  wsd.decay_steps = 400;
  EXPECT_DOUBLE_EQ(schedule_factor(wsd, 600, 1000), 1.0);
  EXPECT_NEAR(schedule_factor(wsd, 800, 1000), 0.55, 1e-12);
}

TEST(Schedule, NeverRisesOrLeavesItsRangeAfterTheWarmUp) {
  for (ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::wsd}) {
    double before = 1.0;
    for (std::int64_t step = 100; step < 1200; ++step) {  // also after the end
      const double f = schedule_factor(make_schedule(kind), step, 1000);
      EXPECT_LE(f, before);
      EXPECT_GE(f, 0.1 - 1e-12);
      before = f;
    }
  }
}

TEST(Schedule, WeightDecayIsConstantByDefault) {
  for (ScheduleKind kind : {ScheduleKind::constant, ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::wsd})
    for (std::int64_t step = 0; step <= 1000; ++step)
      EXPECT_EQ(weight_decay_factor(make_schedule(kind), step, 1000), 1.0);
}

TEST(Schedule, WeightDecayFollowsTheCurveToItsOwnEnd) {
  for (double last : {0.0, 0.25, 10.0})
    for (ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::wsd}) {
      ScheduleConfig c = make_schedule(kind);
      c.final_weight_decay = last;
      EXPECT_DOUBLE_EQ(weight_decay_factor(c, 0, 1000), 1.0) << "not with the warm-up";
      EXPECT_DOUBLE_EQ(weight_decay_factor(c, 100, 1000), 1.0);
      const std::int64_t middle = kind == ScheduleKind::wsd ? 900 : 550;
      EXPECT_NEAR(weight_decay_factor(c, middle, 1000), (1 + last) / 2, 1e-12);
      EXPECT_NEAR(weight_decay_factor(c, 1000, 1000), last, 1e-12);
      EXPECT_NEAR(weight_decay_factor(c, 1500, 1000), last, 1e-12);
    }
}

TEST(Schedule, RefusesAFinalWeightDecayForAConstantSchedule) {
  ScheduleConfig c = make_schedule(ScheduleKind::constant);
  std::vector<SettingProblem> errors;
  c.validate(errors);
  EXPECT_TRUE(errors.empty());
  c.final_weight_decay = 0.5;
  c.validate(errors);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NE(errors[0].text.find("schedule.kind: constant"), std::string::npos) << errors[0].text;
}

TEST(Schedule, RefusesDecayStepsForKindsWithoutThem) {
  for (ScheduleKind kind : {ScheduleKind::constant, ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::wsd}) {
    ScheduleConfig c = make_schedule(kind);
    c.decay_steps = 400;
    std::vector<SettingProblem> errors;
    c.validate(errors);
    ASSERT_EQ(errors.size(), kind == ScheduleKind::wsd ? 0u : 1u);
    if (kind == ScheduleKind::wsd) continue;
    EXPECT_EQ(errors[0].kind, SettingProblemKind::unused);
    EXPECT_TRUE(errors[0].text.starts_with("decay_steps: 400 applies to kind: wsd")) << errors[0].text;
  }
}

// docs/training.md describes the last step.
TEST(Schedule, TheLastStepIsOneStepBeforeTheEnd) {
  EXPECT_NEAR(schedule_factor(make_schedule(ScheduleKind::linear), 999, 1000), 0.1 + 0.9 / 900, 1e-12);
  const double cosine = schedule_factor(make_schedule(ScheduleKind::cosine), 999, 1000);
  EXPECT_GT(cosine, 0.1);
  EXPECT_LT(cosine, 0.1 + 1e-5);
}

}  // namespace
}  // namespace ring
