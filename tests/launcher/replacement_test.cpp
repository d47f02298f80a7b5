// A dead worker is replaced: the survivors keep running, and results are bit-identical to an uninterrupted run.

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "core/devices.h"
#include "tests/launcher/long_runs.h"

namespace ring {
namespace {

class DistReplacement : public test::LongRuns {
 protected:
  // A run of three replicas that saves only at the end, so a restart of all workers would start from step 0.
  std::vector<std::string> replicas(const std::string& directory, const std::vector<std::string>& more = {},
                                    const std::string& faults = "") const {
    std::vector<std::string> words = launch(3, directory, "train.steps=11");
    if (!faults.empty()) words.insert(words.begin() + 1, {"--inject", faults});
    for (const char* word : {"train.batch_size=12", "train.eval_interval=0", "checkpoint.interval=1000"})
      words.emplace_back(word);
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::string log() const { return test::read_file(dir_ / "log"); }
  int count(const std::string& text) const {
    const std::string all = log();
    int n = 0;
    for (std::size_t at = 0; (at = all.find(text, at)) != std::string::npos; ++at) ++n;
    return n;
  }
  std::vector<int> restart_steps(const std::string& directory) const {
    std::vector<int> steps;
    for (const auto& record : records(directory, "restart")) steps.push_back(record.at("step"));
    return steps;
  }
  void expect_same(const std::string& directory) const {
    EXPECT_EQ(losses(directory), losses("calm")) << log();
    EXPECT_TRUE(shard(directory) == shard("calm")) << "the bytes of the checkpoints differ";
  }
};

// Rank 0 is killed twice, the second time before it has recorded step 9, whose update the others have applied.
TEST_F(DistReplacement, AnyRankInAnyPhase) {
  ASSERT_EQ(run(replicas("calm", {"train.ema=0.9"})), 0) << log();
  const std::string faults =
      "1:kill@rank=1,step=3,phase=forward;kill@rank=0,step=5,phase=backward,attempt=1;"
      "kill@rank=2,step=7,phase=reduce,attempt=2;kill@rank=0,step=9,phase=optimizer,attempt=3";
  EXPECT_EQ(run(replicas("r", {"train.ema=0.9"}, faults)), 0) << log();
  EXPECT_EQ(count("; 2 workers keep running (restart "), 4) << log();
  EXPECT_EQ(count("starting all workers again"), 0) << log();
  EXPECT_NE(count(": rank 1 was replaced; 2 workers kept running; restarts have cost "), 0) << log();
  std::string replaced;
  for (const auto& record : records("r", "restart")) {
    EXPECT_EQ(record.at("workers_stayed"), 2);
    replaced += record.at("replaced_ranks").get<std::string>();
  }
  std::vector<int> steps = restart_steps("r");
  EXPECT_EQ(replaced, "1020");
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_GE(steps.back(), 8) << "9, unless a survivor had not done the update";
  steps.pop_back();
  EXPECT_EQ(steps, (std::vector<int>{2, 4, 6}));
  expect_same("r");
}

TEST_F(DistReplacement, TheOtherProcessesStay) {
  const pid_t agent = start(replicas("r", {}, "1:slow@rank=all,phase=data,wait=100ms,attempt=each"));
  ASSERT_TRUE(reaches("r", 4)) << log();
  const std::vector<pid_t> before = children(agent);
  ASSERT_EQ(before.size(), 3u) << log();
  kill(before[1], SIGKILL);
  ASSERT_LT(seconds_until("was replaced; 2 workers kept running"), kPatience) << log();
  const std::vector<pid_t> after = children(agent);
  EXPECT_EQ(after.size(), 3u) << log();
  for (const std::size_t stays : {0u, 2u}) EXPECT_EQ(std::ranges::count(after, before[stays]), 1) << log();
  EXPECT_EQ(wait(agent), 0) << log();
  EXPECT_EQ(count("starting all workers again"), 0) << log();
}

// Rank 0 is lost three times: before the first step, after step 4, and before the next step. The report of step 4
// must pass through two replacements.
TEST_F(DistReplacement, RankZeroIsLostAgain) {
  ASSERT_EQ(run(replicas("calm", {"train.steps=6"})), 0) << log();
  const std::string faults =
      "1:kill@rank=0,step=1,phase=backward;kill@rank=0,step=5,phase=backward,attempt=1;"
      "kill@rank=0,step=5,phase=forward,attempt=2";
  EXPECT_EQ(run(replicas("r", {"train.steps=6"}, faults)), 0) << log();
  EXPECT_EQ(restart_steps("r"), (std::vector<int>{0, 4, 4})) << log();
  expect_same("r");
}

// Rank 1 is lost before the validation of step 3, before the save of step 4, and before the validation at the end.
TEST_F(DistReplacement, ValidationsAndSavesThatWereDueAreDone) {
  const std::vector<std::string> settings = {"train.steps=5", "train.eval_interval=3", "checkpoint.interval=4"};
  ASSERT_EQ(run(replicas("calm", settings)), 0) << log();
  // The save of step 4 runs beside later steps. A further loss could end it, and a save of a later step would follow.
  const std::string faults = "1:kill@rank=1,step=3,phase=finish;kill@rank=1,step=4,phase=snapshot,attempt=1";
  EXPECT_EQ(run(replicas("r", settings, faults)), 0) << log();
  EXPECT_EQ(restart_steps("r"), (std::vector<int>{3, 4})) << log();
  EXPECT_EQ(records("r", "validation").size(), 2u) << log();
  EXPECT_TRUE(std::filesystem::exists(dir_ / "r/checkpoints/step-000000004")) << log();
  expect_same("r");
  EXPECT_EQ(run(replicas("end", settings, "1:kill@rank=1,step=5,phase=finish")), 0) << log();
  EXPECT_EQ(restart_steps("end"), (std::vector<int>{5})) << log();
  EXPECT_EQ(records("end", "validation").size(), 2u) << log();
  expect_same("end");
}

// All workers are restarted if two ranks are lost at once, and if a survivor is lost while it loads the state.
TEST_F(DistReplacement, TwoFailuresStartAllWorkersAgain) {
  ASSERT_EQ(run(replicas("calm")), 0) << log();
  const std::string faults =
      "1:kill@rank=1,step=3,phase=forward;kill@rank=2,step=3,phase=forward;"
      "kill@rank=1,step=5,phase=forward,attempt=1;kill@rank=0,phase=load,attempt=2";
  EXPECT_EQ(run(replicas("r", {}, faults)), 0) << log();
  EXPECT_EQ(count("launch: starting all workers again (restart 1 of this job)"), 1) << log();
  EXPECT_EQ(count("launch: replacing rank 1; 2 workers keep running (restart 2 of this job)"), 1) << log();
  EXPECT_EQ(count("launch: starting all workers again (restart 3 of this job)"), 1) << log();
  expect_same("r");
}

// With ZeRO, a lost rank takes its shard of the state with it, so all workers are restarted.
TEST_F(DistReplacement, ALostShardStartsAllWorkersAgain) {
  const std::string fault = "1:kill@rank=1,step=2,phase=backward";
  EXPECT_EQ(run(replicas("r", {"parallel.zero=1", "train.steps=2"}, fault)), 0) << log();
  EXPECT_EQ(count("launch: starting all workers again (restart 1 of this job)"), 1) << log();
}

// A worker whose GPU runs ahead of its host's records survives with the same bits. The loss of rank 0 leaves two steps
// unrecorded.
class GpuDistReplacement : public DistReplacement {
 protected:
  void SetUp() override {
    if (device_count(Backend::cuda) < 2) GTEST_SKIP() << "fewer than two GPUs";
    DistReplacement::SetUp();
  }
  std::vector<std::string> on_gpus(const std::string& directory, const char* setting,
                                   const std::string& faults = "") const {
    std::vector<std::string> words = launch(2, directory, "train.steps=60");
    if (!faults.empty()) words.insert(words.begin() + 1, {"--inject", faults});
    for (const char* word : {"run.device=cuda", "run.tuning=rule", "model.width=128", "model.context=64",
                             "train.ema=0.9", "train.eval_interval=0", "checkpoint.interval=1000", setting})
      words.emplace_back(word);
    return words;
  }
  void expect_replaced(const std::string& directory, const char* setting) const {
    const std::string faults =
        "1:kill@rank=1,step=9,phase=forward;kill@rank=0,step=21,phase=backward,attempt=1;"
        "kill@rank=1,step=33,phase=finish,attempt=2;kill@rank=0,step=45,phase=data,attempt=3";
    EXPECT_EQ(run(on_gpus(directory, setting, faults)), 0) << log();
    EXPECT_EQ(count("; 1 worker keeps running (restart "), 4) << log();
    EXPECT_EQ(count("starting all workers again"), 0) << log();
    expect_same(directory);
  }
};

TEST_F(GpuDistReplacement, AnyRankInAnyPhase) {
  ASSERT_EQ(run(on_gpus("calm", "train.cuda_graph=off")), 0) << log();
  expect_replaced("eager", "train.cuda_graph=off");
  expect_replaced("replayed", "train.cuda_graph=on");
}

TEST_F(GpuDistReplacement, MessagesOfCopyEngines) {
  ASSERT_EQ(run(on_gpus("calm", "parallel.cp=2")), 0) << log();
  expect_replaced("killed", "parallel.cp=2");
}

}  // namespace
}  // namespace ring
