// Detection of hanging workers, on a simulated clock.

#include "launcher/hang_detector.h"

#include <gtest/gtest.h>

#include <random>

namespace ring {
namespace {

using Seconds = HangRules::Seconds;
constexpr double kLook = 0.2;  // seconds between two looks

// A simulated worker that is looked at every kLook seconds.
class Watched {
 public:
  explicit Watched(const HangRules& rules = {}) : hang_detector_(rules, at(0)) {}

  // Continues an activity for `seconds`. Returns whether the worker was said to hang.
  bool hangs_during(double seconds, Activity activity = Activity::step) {
    begin(activity);
    bool hangs = false;
    for (double left = seconds; left > 0; left -= kLook) hangs |= look(std::min(left, kLook));
    return hangs;
  }
  bool look(double later) {
    now_ += later;
    return hang_detector_.update(sign_, at(now_));
  }
  void progress() { ++sign_.progress; }
  bool step(double seconds) {
    const bool hangs = hangs_during(seconds);
    ++sign_.step;
    progress();
    return hangs | look(0);
  }
  bool steps(int n, double seconds) {
    bool hangs = false;
    for (int i = 0; i < n; ++i) hangs |= step(seconds);
    return hangs;
  }
  bool activity(Activity a, double seconds) {
    progress();
    const bool hangs = hangs_during(seconds, a);
    progress();
    return hangs;
  }
  void unseen_save() { ++sign_.saves; }
  // Returns the seconds of silence until the worker is said to hang.
  double silence_until_hang(Activity a = Activity::step) {
    const double since = now_;
    begin(a);
    for (progress(); now_ - since < 10'000;)
      if (look(kLook)) return now_ - since;
    return 1e9;
  }

 private:
  void begin(Activity a) {
    if (a == Activity::validation && a != sign_.activity) ++sign_.validations;
    if (a == Activity::save && a != sign_.activity) ++sign_.saves;
    sign_.activity = a;
  }
  static HangDetector::Time at(double s) {
    return HangDetector::Time{} + std::chrono::duration_cast<HangDetector::Time::duration>(Seconds(s + 1000));
  }
  double now_ = 0;
  LifeSign sign_;
  HangDetector hang_detector_;
};

TEST(HangDetector, ShortStepsGetTenSeconds) {
  Watched w;
  EXPECT_FALSE(w.steps(50, 0.5));
  EXPECT_NEAR(w.silence_until_hang(), 10, 3 * kLook);
}

TEST(HangDetector, LongStepsGetFiveTimesTheirTime) {
  Watched w;
  EXPECT_FALSE(w.steps(20, 8));
  EXPECT_NEAR(w.silence_until_hang(), 40, 3 * kLook);
}

// One long step among 128 is the one in a hundred that may be long; two are too many.
TEST(HangDetector, TheLimitFollowsThePercentileOfRecentSteps) {
  Watched w;
  w.steps(100, 1);
  w.step(9);
  w.steps(27, 1);
  EXPECT_NEAR(Watched(w).silence_until_hang(), 10, 3 * kLook);
  w.step(9);
  EXPECT_NEAR(Watched(w).silence_until_hang(), 45, 4 * kLook);
  w.steps(128, 1);
  EXPECT_NEAR(w.silence_until_hang(), 10, 3 * kLook) << "old steps are forgotten";
}

TEST(HangDetector, FirstStepsMayTakeAsLongAsOperations) {
  HangRules rules;
  rules.unmeasured = Seconds(77);
  Watched w(rules);
  EXPECT_FALSE(w.hangs_during(1000, Activity::unlimited)) << "loading";
  EXPECT_FALSE(w.step(70)) << "measures kernels";
  EXPECT_FALSE(w.steps(14, 0.2));
  EXPECT_NEAR(w.silence_until_hang(), 77, 3 * kLook);
}

TEST(HangDetector, TheFirstValidationAndSaveHaveTheirOwnLimits) {
  Watched w;
  w.steps(50, 0.2);
  EXPECT_FALSE(w.activity(Activity::validation, 60));
  EXPECT_FALSE(w.activity(Activity::save, 60));
  w.steps(3, 0.2);
  EXPECT_NEAR(Watched(w).silence_until_hang(Activity::validation), 10, 3 * kLook);
  EXPECT_NEAR(Watched(w).silence_until_hang(Activity::save), 300, 5 * kLook) << "five times the last one";
  EXPECT_NEAR(w.silence_until_hang(), 10, 3 * kLook) << "their time is no step's";
}

// The saves are too short to be seen, but count as past saves.
TEST(HangDetector, ShortSavesCount) {
  Watched w;
  w.steps(50, 0.2);
  w.unseen_save();
  w.steps(5, 0.2);
  EXPECT_NEAR(w.silence_until_hang(Activity::save), 10, 3 * kLook);
}

TEST(HangDetector, TheFirstSaveThatHangsIsFound) {
  Watched w;
  w.steps(50, 0.2);
  EXPECT_NEAR(w.silence_until_hang(Activity::save), 300, 3 * kLook);
}

TEST(HangDetector, TimeBetweenDelayedLooksIsNotSilence) {
  Watched w;
  w.steps(50, 0.2);
  EXPECT_FALSE(w.look(3600)) << "the machine slept";
  EXPECT_FALSE(w.hangs_during(8));
  EXPECT_TRUE(w.hangs_during(3));
}

TEST(HangDetector, TheLimitMayBeFixedOrOff) {
  HangRules rules;
  rules.fixed = Seconds(2);
  Watched fixed(rules);
  fixed.steps(20, 0.2);
  EXPECT_NEAR(fixed.silence_until_hang(), 2, 3 * kLook);
  rules.on = false;
  Watched off(rules);
  off.steps(20, 0.2);
  EXPECT_FALSE(off.hangs_during(10'000));
}

// A worker that makes progress is never said to hang: steps of all lengths with heavy tails, with validation and saves
// between them.
TEST(HangDetector, ProgressGivesNoFalseAlarms) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> noise(0, 0.3);
  for (int run = 0; run < 30; ++run) {
    Watched w;
    const double typical = std::exp(std::uniform_real_distribution<double>(-3, 2)(random));
    ASSERT_FALSE(w.step(20 * typical + 30)) << "the first step measures";
    for (int i = 0; i < 1000; ++i) {
      ASSERT_FALSE(w.step(typical * noise(random))) << "run " << run << ", step " << i << " of " << typical << " s";
      ASSERT_FALSE(i % 100 == 99 && w.activity(Activity::validation, 3 * typical)) << run;
      ASSERT_FALSE(i % 100 == 50 && w.activity(Activity::save, 30 * noise(random))) << run;
    }
  }
}

}  // namespace
}  // namespace ring
