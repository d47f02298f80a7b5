// Jobs that share a machine, or have a limited network.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "job/socket.h"
#include "tests/launcher/node.h"
#include "tests/launcher/training.h"
#include "tests/paths.h"

namespace ring {
namespace {

using test::read_file;

class DistTrainingCrowd : public test::TrainingRuns {
 protected:
  // Returns the seconds until the model is built and steps begin. Waits for the end of the run.
  double seconds_to_start(int processes, const std::string& directory) const {
    const auto begin = AwakeClock::now();
    const pid_t agent = start(launch(processes, directory, "train.steps=1"));
    while (read_file(dir_ / "log").find("memory: ") == std::string::npos &&
           AwakeClock::now() < begin + std::chrono::minutes(1))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const double seconds = std::chrono::duration<double>(AwakeClock::now() - begin).count();
    EXPECT_EQ(wait(agent), 0) << read_file(dir_ / "log");
    return seconds;
  }
};

TEST_F(DistTrainingCrowd, EightJobsAtOnceDoNotInterfere) {
  std::vector<pid_t> agents;
  for (int job = 0; job < 8; ++job) {
    const std::string name = "job" + std::to_string(job);
    agents.push_back(start(launch(2, name, "train.steps=2"), {}, (name + ".log").c_str()));
  }
  for (int job = 0; job < 8; ++job) {
    const std::string name = "job" + std::to_string(job);
    EXPECT_EQ(wait(agents[static_cast<std::size_t>(job)]), 0) << read_file(dir_ / (name + ".log"));
    EXPECT_EQ(losses(name), losses("job0"));
    EXPECT_EQ(losses(name).size(), 3u) << "two steps and a validation";
    EXPECT_TRUE(shard(name) == shard("job0"));
  }
}

// The best of several runs counts, since the machine does other things meanwhile.
TEST_F(DistTrainingCrowd, FourWorkersStartWithinTwoSeconds) {
  double best = 1e9;
  for (int i = 0; i < 5 && best > 2; ++i) best = std::min(best, seconds_to_start(4, "r" + std::to_string(i)));
  EXPECT_LE(best, 2);
}

// Returns the ports of 127.0.0.1 at which a process listens.
std::set<int> ports_of(const std::string& pid) {
  std::set<std::string> own;
  std::error_code gone;  // set if the process has ended
  for (test::fs::directory_iterator f("/proc/" + pid + "/fd", gone), end; !gone && f != end; f.increment(gone)) {
    std::error_code closed;
    own.insert(test::fs::read_symlink(f->path(), closed).string());
  }
  std::set<int> ports;
  std::ifstream table("/proc/" + pid + "/net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state, word, inode;
    words >> number >> local >> remote >> state >> word >> word >> word >> word >> word >> inode;
    if (state == "0A" && own.contains("socket:[" + inode + "]"))
      ports.insert(std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
  }
  return ports;
}

// Sends bytes to a port that Gloo cannot understand. The port may be closed by then.
void send_garbage(int port) try {
  const auto soon = AwakeClock::now() + std::chrono::seconds(1);
  send_all(connect_to({"127.0.0.1", port}, soon), std::string(56, '\xff'), soon);
} catch (const Error&) {
}

// Disturbs every port that the two workers of an agent's first attempt open while they start.
void disturb_first_attempt(pid_t agent) {
  std::set<std::string> workers;
  std::set<int> disturbed;
  for (const auto end = AwakeClock::now() + std::chrono::seconds(2); AwakeClock::now() < end;) {
    std::istringstream children(read_file(str("/proc/", agent, "/task/", agent, "/children")));
    for (std::string pid; children >> pid && workers.size() < 2;) workers.insert(pid);
    const bool over = std::ranges::none_of(workers, [](const auto& pid) { return test::fs::exists("/proc/" + pid); });
    if (over && workers.size() == 2) return;
    for (const std::string& pid : workers)
      for (const int port : ports_of(pid))
        if (disturbed.insert(port).second) send_garbage(port);
  }
}

// Gloo trusts any process that connects in time: that ends one attempt, and the next attempt is not disturbed.
TEST_F(DistTrainingCrowd, AStrangerAtTheStartCostsAtMostOneRestart) {
  int restarts = 0;
  for (int job = 0; restarts < 2 && job < 30; ++job) {
    const std::string name = str("r", job);
    const pid_t agent = start(launch(2, name, "train.steps=1"));
    disturb_first_attempt(agent);
    EXPECT_EQ(wait(agent), 0) << read_file(dir_ / "log");
    const std::string log = read_file(dir_ / "log");
    EXPECT_EQ(log.find("restart 2 of this job"), std::string::npos) << log;
    EXPECT_EQ(losses(name).size(), 2u);
    restarts += log.find("restart 1 of this job") != std::string::npos;
  }
  // It is left to chance who connects first: on a busy machine, Gloo may never accept a stranger.
  if (restarts == 0) GTEST_SKIP() << "no stranger was let in, so no restart was tested";
}

// The machine has only ::1, and no host name resolves, not even its own.
TEST_F(DistTrainingCrowd, TrainsWithIPv6AloneAndWithoutNames) {
  std::unique_ptr<test::Node> node;
  try {
    node = std::make_unique<test::Node>("nobody.knows.me");
  } catch (const std::runtime_error& e) {
    GTEST_SKIP() << e.what();
  }
  const auto shell = [&](const std::string& line) {
    return node->start({"/bin/sh", "-c", "cd " + dir_.string() + "; PATH=$PATH:/sbin:/usr/sbin; " + line});
  };
  const test::Finished up =
      shell("ip link set lo up && ip address del 127.0.0.1/8 dev lo && ip address show lo")->wait();
  if (up.code != 0 || up.output.find("::1") == std::string::npos) GTEST_SKIP() << "no IPv6 here: " << up.output;
  ASSERT_EQ(run({"launch", "--make-secret", "secret"}), 0);
  const std::string agent = str(test::ring_binary(),
                                " launch --nnodes 2 -n 1 --threads-per-worker 1 --rdzv-endpoint [::1]:29400 "
                                "--secret-file secret -- train t.yaml train.steps=2 run.directory=r");
  const auto first = shell(agent), second = shell(agent);
  for (const auto* a : {&first, &second}) {
    const test::Finished f = (*a)->wait();
    EXPECT_EQ(f.code, 0) << f.output;
  }
  EXPECT_EQ(losses("r").size(), 3u);
}

}  // namespace
}  // namespace ring
