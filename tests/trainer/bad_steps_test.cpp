// Runs with steps that must not be taken.

#include "trainer/step_guard.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <cmath>
#include <thread>

#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

TrainConfig spikes_above(double score) {
  TrainConfig c;
  c.on_bad_step = OnBadStep::skip;
  c.spike_deviations = score;
  return c;
}

TEST(StepGuard, LimitsFollowFromMedianAndSpreadOfTheLastSteps) {
  const TrainConfig c = spikes_above(4);
  StepGuard guard(c);
  for (int i = 1; i <= 31; ++i) guard.accept(i, 2, 8);
  EXPECT_EQ(guard.limits(31).loss, 0) << "too few to know";
  for (int i = 32; i <= 1000; ++i) guard.accept(i, i % 2 ? 1 : 3, 8);
  const StepGuard::Limits limits = guard.limits(1000);  // the last 128 losses: 64 ones and 64 threes
  EXPECT_NEAR(limits.loss, 2 + 4 * 1.4826 * 1, 1e-9);
  EXPECT_NEAR(limits.norm, 8 + 4 * 0.02 * 8, 1e-12) << "no spread: a fiftieth of the median";
  const TrainConfig off = spikes_above(0);
  StepGuard none(off);
  for (int i = 1; i <= 100; ++i) none.accept(i, 2, 8);
  EXPECT_EQ(none.limits(100).norm, 0);
}

TEST(StepGuard, LimitsLeaveOutTheStepThatMayStillRun) {
  const TrainConfig c = spikes_above(4);
  StepGuard early(c), late(c);
  for (int i = 1; i <= 40; ++i) (i < 40 ? early : late).accept(i, 2 + i, 8), i < 40 ? late.accept(i, 2 + i, 8) : void();
  EXPECT_EQ(early.limits(39).loss, late.limits(39).loss);
  EXPECT_NE(late.limits(40).loss, late.limits(39).loss);
}

TEST(StepGuard, ALoadedStateGivesTheSameLimits) {
  const TrainConfig c = spikes_above(5);
  StepGuard guard(c), resumed(c);
  for (int i = 1; i <= 300; ++i) guard.accept(i, std::sqrt(i), 1.0 / i);
  guard.add_bad_step({.step = 301, .first_sample = 1200, .end_sample = 1204, .loss = std::nan(""), .norm = 7});
  *resumed.state() = *guard.state();
  resumed.on_state_loaded();
  EXPECT_EQ(resumed.limits(300).loss, guard.limits(300).loss);
  EXPECT_EQ(resumed.limits(299).norm, guard.limits(299).norm);
  ASSERT_EQ(resumed.bad_steps().size(), 1u);
  EXPECT_TRUE(std::isnan(resumed.bad_steps()[0].loss));
  EXPECT_EQ(resumed.bad_steps()[0].end_sample, 1204);
}

TEST(StepGuard, ARunStopsAfterTooManyBadStepsInAWindow) {
  TrainConfig c = spikes_above(5);
  c.max_bad_steps = 2;
  c.bad_step_window = 100;
  StepGuard guard(c);
  for (const std::int64_t step : {50, 60}) {
    EXPECT_EQ(guard.action_for_bad_step(step), OnBadStep::skip);
    guard.add_bad_step({.step = step});
  }
  EXPECT_EQ(guard.action_for_bad_step(149), OnBadStep::stop);
  EXPECT_EQ(guard.action_for_bad_step(150), OnBadStep::skip) << "the first is too long ago to count";
}

// The text repeats itself, except for a part with bytes that occur nowhere else.
class RunsWithNoise : public Runs {
 protected:
  void SetUp() override {
    Runs::SetUp();
    std::ofstream text(folder_ / "noisy.txt");
    for (int i = 0; i < 600; ++i) {
      text << "line of a text that repeats itself\n";
      if (i == 300)
        for (int j = 0; j < 400; ++j) text << static_cast<char>('!' + j * j * 7 % 61 % 40);
    }
    text.close();
    ASSERT_EQ(
        ring({"data", "prepare", "--input", path("noisy.txt"), "--tokenizer", "bytes", "--output", path("noisy.h5")})
            .code,
        0);
  }
  std::vector<std::string> noisy(const std::string& run, const std::string& on_bad_step) const {
    return train(run, {"data.path=" + path("noisy.h5"), "train.on_bad_step=" + on_bad_step, "train.spike_deviations=4",
                       "train.max_bad_steps=50", "train.steps=300", "model.dropout=0", "train.eval_interval=0"});
  }
  std::vector<nlohmann::json> bad_steps(const std::string& run) const {
    std::vector<nlohmann::json> out;
    std::ifstream file(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (auto json = nlohmann::json::parse(line); json.at("group") == "bad_step") out.push_back(std::move(json));
    return out;
  }
};

TEST_F(RunsWithNoise, ASpikeStopsTheRunByDefault) {
  const Finished stopped = run_process(noisy("stop", "stop"));
  EXPECT_EQ(stopped.code, 1);
  for (const char* part : {"a spike (train.spike_deviations)", "samples ", "set train.on_bad_step"})
    EXPECT_NE(stopped.output.find(part), std::string::npos) << part << " not in: " << stopped.output;
}

TEST_F(RunsWithNoise, SkippingLeavesOutTheSamplesOfSpikesAndResumes) {
  const Finished whole = run_process(noisy("whole", "skip"));
  ASSERT_EQ(whole.code, 0) << whole.output;
  const std::vector<nlohmann::json> bad = bad_steps("whole");
  ASSERT_FALSE(bad.empty()) << whole.output;
  EXPECT_EQ(bad[0].at("last_sample").get<int>() - bad[0].at("first_sample").get<int>(), 3);
  EXPECT_EQ(bad[0].at("steps_back"), 0);
  EXPECT_EQ(losses("whole").rbegin()->first, 300);

  Process killed(noisy("killed", "skip"));
  while (records("killed") < 230 && killed.running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  killed.signal(SIGKILL);
  EXPECT_EQ(killed.wait().code, -SIGKILL);
  ASSERT_EQ(run_process(noisy("killed", "skip")).code, 0);
  EXPECT_EQ(losses("killed"), losses("whole"));
  EXPECT_EQ(tensors("killed", "step-000000300"), tensors("whole", "step-000000300"));
}

TEST_F(RunsWithNoise, RollingBackLeavesOutAllSamplesSinceTheCheckpoint) {
  const Finished run = run_process(noisy("back", "rollback"));
  ASSERT_EQ(run.code, 0) << run.output;
  EXPECT_NE(run.output.find("Skipping samples"), std::string::npos) << run.output;
  EXPECT_EQ(losses("back").rbegin()->first, 300);
  bool back = false;
  for (const auto& bad : bad_steps("back")) {
    const int steps_back = bad.at("steps_back").get<int>();
    // More samples are left out if an earlier rollback to the same checkpoint has already left out some.
    EXPECT_GE(bad.at("last_sample").get<int>() + 1 - bad.at("first_sample").get<int>(), 4 * (steps_back + 1));
    EXPECT_EQ((bad.at("step").get<int>() - 1 - steps_back) % 5, 0) << "a checkpoint's step";
    back = back || steps_back > 0;
  }
  EXPECT_TRUE(back) << run.output;
}

}  // namespace
}  // namespace ring::test
