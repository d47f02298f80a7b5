// Tests jobs whose processes are stopped and resumed, as by a scheduler, a frozen container or a closed laptop.

#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "tests/launcher/long_runs.h"

namespace ring {
namespace {

using namespace std::chrono_literals;
using std::chrono::seconds;

// Runs of two workers that treat a rank as dead after two seconds of silence.
class DistSuspended : public test::LongRuns {
 protected:
  void SetUp() override {
    LongRuns::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(run(long_run("calm", {"-n", "2"})), 0) << log();
  }
  std::string log() const { return test::read_file(dir_ / "log"); }
  // Starts the run and waits for `steps` steps. Returns the pids of the launcher and then of its workers; empty if the
  // run did not get that far.
  std::vector<pid_t> start_run(std::vector<std::string> how = {}, std::size_t steps = 7) {
    how.insert(how.begin(), {"-n", "2"});
    agent_ = start(long_run("r", how), {{"RINGMASTER_LIVENESS", "2"}});
    if (!reaches("r", steps)) return {};
    std::vector<pid_t> all = children(agent_);
    all.insert(all.begin(), agent_);
    return all;
  }
  static void signal(const std::vector<pid_t>& processes, int number) {
    for (const pid_t p : processes) kill(p, number);
  }
  static void stop_for(const std::vector<pid_t>& processes, seconds time) {
    signal(processes, SIGSTOP);
    std::this_thread::sleep_for(time);
    signal(processes, SIGCONT);
  }
  void expect_undisturbed() {
    EXPECT_EQ(wait(agent_), 0) << log();
    EXPECT_EQ(restarts("r"), 0) << log();
    expect_calm("r");
  }

  pid_t agent_ = 0;
};

// Stops the job for longer than any time-out for a reply: clients of the store wait 10 s.
TEST_F(DistSuspended, AWhollyStoppedJobResumes) {
  const std::vector<pid_t> all = start_run();
  ASSERT_EQ(all.size(), 3u) << log();
  stop_for(all, 15s);
  expect_undisturbed();
}

TEST_F(DistSuspended, ARepeatedlyStoppedJobResumes) {
  const std::vector<pid_t> all = start_run();
  ASSERT_EQ(all.size(), 3u) << log();
  for (int i = 0; i < 4; ++i) {
    stop_for(all, 1s);
    std::this_thread::sleep_for(50ms);
  }
  expect_undisturbed();
}

TEST_F(DistSuspended, WorkersContinueWithoutTheirLauncher) {
  const std::vector<pid_t> all = start_run({"--inject", "1:slow@rank=all,phase=data,wait=400ms"});  // 40 steps: 16 s
  ASSERT_EQ(all.size(), 3u) << log();
  stop_for({agent_}, 12s);
  expect_undisturbed();
}

// The ranks connect while their launcher, which serves the store, is stopped.
TEST_F(DistSuspended, WorkersStartWithoutTheirLauncher) {
  agent_ = start(long_run("r", {"-n", "2"}), {{"RINGMASTER_LIVENESS", "2"}});
  while (children(agent_).size() < 2) std::this_thread::sleep_for(1ms);
  stop_for({agent_}, 4s);
  expect_undisturbed();
}

// Both the launcher and its store see the silence of the workers.
TEST_F(DistSuspended, WorkersStoppedTogetherResume) {
  const std::vector<pid_t> all = start_run();
  ASSERT_EQ(all.size(), 3u) << log();
  stop_for({all[1], all[2]}, 4s);
  expect_undisturbed();
}

TEST_F(DistSuspended, AWorkerThatResumesSlightlyLaterIsWaitedFor) {
  const std::vector<pid_t> all = start_run();
  ASSERT_EQ(all.size(), 3u) << log();
  signal(all, SIGSTOP);
  std::this_thread::sleep_for(3s);
  signal({all[0], all[1]}, SIGCONT);
  std::this_thread::sleep_for(700ms);
  signal({all[2]}, SIGCONT);
  expect_undisturbed();
}

// A worker counts as silent only while others run.
TEST_F(DistSuspended, AWorkerThatStaysStoppedIsReplaced) {
  const std::vector<pid_t> all = start_run();
  ASSERT_EQ(all.size(), 3u) << log();
  signal(all, SIGSTOP);
  std::this_thread::sleep_for(3s);
  signal({all[0], all[1]}, SIGCONT);
  EXPECT_LT(seconds_until("launch: rank 1 (pid " + std::to_string(all[2]) + ") is stopped"), 60) << log();
  EXPECT_EQ(wait(agent_), 0) << log();
  EXPECT_EQ(restarts("r"), 1) << log();
  expect_calm("r");
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // sanitizers have to be loaded before LD_PRELOAD libraries
// Time-outs, hangs and the cost of restarts are measured with clocks that setting the system clock does not change.
TEST_F(DistSuspended, ASystemClockThatJumpsDisturbsNothing) {
  const auto begin = std::chrono::steady_clock::now();
  agent_ = start(long_run("r", {"-n", "2"}), {{"RINGMASTER_LIVENESS", "2"}, {"LD_PRELOAD", RING_FAKE_CLOCK}});
  EXPECT_NE(kill_worker(agent_, "r", 12, 1), 0) << log();
  EXPECT_EQ(wait(agent_), 0) << log();
  const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(restarts("r"), 1) << log();
  expect_calm("r");
  const auto jobs = records("r", "job");
  ASSERT_FALSE(jobs.empty());
  const double seconds_of_job = jobs.back().at("seconds"), lost = jobs.back().at("restart_seconds_lost");
  EXPECT_TRUE(0 < seconds_of_job && seconds_of_job <= all) << seconds_of_job << " of " << all;
  EXPECT_TRUE(0 < lost && lost <= seconds_of_job) << lost << " of " << seconds_of_job;
  const auto by_time = [](const auto& a, const auto& b) { return a.at("time") < b.at("time"); };
  const auto steps = records("r", "train");
  EXPECT_FALSE(std::ranges::is_sorted(steps, by_time)) << "records should have the time of the system clock";
}
#endif

}  // namespace
}  // namespace ring
