// Commands on a run that is training. It saves after every step and removes the previous checkpoint.
#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

class SlowLiveRuns : public Runs {
 protected:
  void SetUp() override {
    Runs::SetUp();
    live_ = std::make_unique<Process>(train("live", {"train.steps=1000000", "train.eval_interval=0", "run.threads=1",
                                                     "checkpoint.interval=1", "checkpoint.keep_last=1"}));
    const auto saved = [&] { return std::ranges::any_of(fs::directory_iterator(path("live/checkpoints")), is_whole); };
    while ((records("live") < 5 || !saved()) && live_->running())
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  void TearDown() override {
    EXPECT_TRUE(live_->running());
    live_.reset();
    Runs::TearDown();
  }
  static bool is_whole(const fs::path& checkpoint) { return checkpoint.filename().string().starts_with("step-"); }
  static void expect_sound(const Finished& done) {
    EXPECT_EQ(done.code, 0) << done.output;
    EXPECT_EQ(done.output.find("damaged"), std::string::npos) << done.output;
  }

  std::unique_ptr<Process> live_;
};

TEST_F(SlowLiveRuns, AreReadWithoutFalseAlarms) {
  for (int round = 0; round < 10; ++round) {
    expect_sound(ring({"checkpoint", "verify", path("live")}));
    expect_sound(ring({"checkpoint", "inspect", path("live")}));
    expect_sound(ring({"config", "show", path("live")}));
    expect_sound(ring({"eval", path("live"), "--batches", "1", "--threads", "1"}));
    expect_sound(ring({"generate", path("live"), "--max-tokens", "1", "--threads", "1"}));
    expect_sound(run_process(train("next", {"run.init_from=" + path("live"), "train.steps=1", "--fresh"})));
  }
}

TEST_F(SlowLiveRuns, ARemovedCheckpointIsReportedAsGone) {
  const std::string named = path("live/checkpoints/step-000000003");
  const auto is_later = [&](const fs::path& checkpoint) { return checkpoint.string() > named; };
  const auto later = [&] { return std::ranges::any_of(fs::directory_iterator(path("live/checkpoints")), is_later); };
  while ((fs::exists(named) || !later()) && live_->running()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  for (const char* command : {"eval", "generate"}) {
    const Finished done = ring({command, named});
    EXPECT_EQ(done.code, 1) << done.output;
    EXPECT_NE(done.output.find(named), std::string::npos) << done.output;
    EXPECT_EQ(done.output.find("damaged"), std::string::npos) << done.output;
  }
}

}  // namespace
}  // namespace ring::test
