// A dead worker or a dead agent is replaced in jobs of two agents: the workers of the other agent keep running, and
// results are bit-identical to an uninterrupted run.

#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "job/socket.h"
#include "tests/launcher/long_runs.h"

namespace ring {
namespace {

// Runs of two agents with two workers each, which save only at the end and after a replacement.
class DistNodeReplacement : public test::LongRuns {
 protected:
  void SetUp() override {
    LongRuns::SetUp();
    if (IsSkipped()) return;
    port_ = local_endpoint(listen_on({"127.0.0.1", 0})).port;
    ASSERT_EQ(run({"launch", "--make-secret", "secret"}), 0) << log("log");
    ASSERT_EQ(run(with_settings(launch(4, "calm"))), 0) << log("log");
  }
  static std::vector<std::string> with_settings(std::vector<std::string> words) {
    for (const char* word : {"train.steps=6", "train.eval_interval=4", "checkpoint.interval=1000"})
      words.emplace_back(word);
    return words;
  }
  pid_t agent(const char* log, const std::string& faults, const std::vector<std::string>& options = {}) const {
    std::vector<std::string> words = launch(2, "r");
    words.insert(words.begin() + 1, options.begin(), options.end());
    words.insert(words.begin() + 1, {"--inject", faults, "--nnodes", "2", "--secret-file", "secret", "--rdzv-endpoint",
                                     "127.0.0.1:" + std::to_string(port_)});
    return start(with_settings(words), {}, log);
  }
  // Starts the agents of nodes 0 and 1.
  std::pair<pid_t, pid_t> start_both(const std::string& faults) const {
    const pid_t first = agent("first", faults);
    EXPECT_LT(seconds_until("waiting", "first"), kPatience) << log("first");
    return {first, agent("second", faults)};
  }
  std::string log(const char* name) const { return test::read_file(dir_ / name); }
  bool says(const char* name, const std::string& text) const { return log(name).find(text) != std::string::npos; }
  void expect_same() const {
    EXPECT_EQ(losses("r"), losses("calm")) << log("first") << log("second");
    EXPECT_TRUE(shard("r") == shard("calm")) << "the bytes of the checkpoints differ";
  }
  int port_ = 0;
};

// A worker of each node is lost. Then a worker of both nodes is lost at once, which restarts all workers.
TEST_F(DistNodeReplacement, AWorkerOfAnyNode) {
  const auto [first, second] = start_both(
      "1:kill@rank=3,step=2,phase=backward;kill@rank=0,step=3,phase=optimizer,attempt=1;"
      "kill@rank=1,step=5,phase=forward,attempt=2;kill@rank=3,step=5,phase=forward,attempt=2");
  for (const pid_t agent : {first, second}) EXPECT_EQ(wait(agent), 0) << log("first") << log("second");
  EXPECT_TRUE(says("first", "launch: 2 workers of this node keep running (restart 1 of this job)")) << log("first");
  EXPECT_TRUE(says("second", "replacing rank 3; 1 worker of this node keeps running (restart 1 ")) << log("second");
  EXPECT_TRUE(says("first", "replacing rank 0; 1 worker of this node keeps running (restart 2 ")) << log("first");
  EXPECT_TRUE(says("second", "launch: 2 workers of this node keep running (restart 2 ")) << log("second");
  for (const char* name : {"first", "second"})
    EXPECT_TRUE(says(name, "starting all workers again (restart 3 ")) << log(name);
  EXPECT_TRUE(says("first", "the workers were restarted once, and lost workers were replaced 2 times, which cost"))
      << log("first");
  const auto all = records("r", "restart");
  ASSERT_EQ(all.size(), 3u);
  for (const std::size_t i : {0u, 1u}) EXPECT_EQ(all[i].at("workers_stayed"), 3);
  EXPECT_EQ(all[0].at("step"), 1);
  expect_same();
}

// Node 1 is lost, and later node 0, before rank 0 has recorded step 4 and its validation. Then a survivor of node 1
// becomes rank 0.
TEST_F(DistNodeReplacement, AnAgentOfAnyNode) {
  const std::string faults = "1:kill@agent=1,step=2,phase=backward;kill@agent=0,step=4,phase=optimizer,attempt=1";
  const auto [first, second] = start_both(faults);
  EXPECT_EQ(wait(second), -SIGKILL) << log("second");
  const pid_t third = agent("third", faults, {"--log-dir", "logs"});
  EXPECT_EQ(wait(first), -SIGKILL) << log("first");
  const pid_t fourth = agent("fourth", faults);
  for (const pid_t agent : {third, fourth}) EXPECT_EQ(wait(agent), 0) << log("third") << log("fourth");
  EXPECT_TRUE(says("first", "launch: 2 workers of this node keep running (restart 1 of this job)")) << log("first");
  EXPECT_TRUE(says("third", "launch: 2 workers of this node keep running (restart 2 of this job)")) << log("third");
  EXPECT_TRUE(says("third", "launch: starting the workers of this node (restart 1 of this job)")) << log("third");
  EXPECT_TRUE(says("third", "launch: lost workers were replaced 2 times, which cost ")) << log("third");
  EXPECT_TRUE(says("third", "step 6")) << "the survivor that is now rank 0 writes to the console:\n" << log("third");
  const auto all = records("r", "restart");
  ASSERT_EQ(all.size(), 2u);
  for (const auto& record : all) {
    EXPECT_EQ(record.at("replaced_ranks"), "2, 3");
    EXPECT_EQ(record.at("workers_stayed"), 2);
  }
  expect_same();
}

}  // namespace
}  // namespace ring
