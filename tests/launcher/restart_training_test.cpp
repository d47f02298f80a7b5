// Runs whose workers or agents are killed: they resume by themselves, with bit-identical results.

#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <csignal>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <thread>

#include "core/exit_code.h"
#include "job/socket.h"
#include "tests/launcher/long_runs.h"
#include "tests/paths.h"
#include "tests/process.h"

namespace ring {
namespace {

using test::read_file;
using Clock = std::chrono::steady_clock;

class DistTrainingRestarts : public test::LongRuns {};

TEST_F(DistTrainingRestarts, KilledRanksGiveTheSameBits) {
  ASSERT_EQ(run(long_run("calm", {"-n", "4"})), 0) << read_file(dir_ / "log");
  const pid_t agent = start(long_run("r", {"-n", "4"}));
  std::uint64_t random = static_cast<std::uint64_t>(getpid());
  pid_t last = 0;
  for (const std::size_t step : {7u, 18u, 29u}) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    last = kill_worker(agent, "r", step, (random >> 33) % 4);
    EXPECT_NE(last, 0) << read_file(dir_ / "log");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(wait(agent), 0) << read_file(dir_ / "log");
  const std::string log = read_file(dir_ / "log");
  EXPECT_NE(log.find("(pid " + std::to_string(last) + ") was killed by signal 9"), std::string::npos) << log;
  EXPECT_NE(log.find(" after step "), std::string::npos) << log;
  EXPECT_NE(log.find("(restart 3 of this job)"), std::string::npos) << log;
  EXPECT_EQ(restarts("r"), 3);
  expect_calm("r");
  std::size_t took = log.find("restart 1 took ");
  for (const char* stage : {" s: noticed ", ", ended ", ", spawned ", ", running ", ", rendezvous ", ", mesh ",
                            ", plan ", ", verified ", ", model ", ", checkpoint ", ", first step "})
    EXPECT_NE(took = log.find(stage, took), std::string::npos) << "restart 1 took:" << stage << "\n" << log;
}

// Workers send each other no signs of life, so that only the agent can notice.
TEST_F(DistTrainingRestarts, AStoppedRankIsNamedAndTheRunContinues) {
  ASSERT_EQ(run(long_run("calm", {"-n", "2"})), 0) << read_file(dir_ / "log");
  const pid_t agent = start(
      long_run("r", {"-n", "2", "--hang-limit", "2", "--monitor-interval", "0.02", "--log-dir", "logs", "--tee", "3"}),
      {{"RINGMASTER_LIVENESS", "0"}});
  ASSERT_TRUE(reaches("r", 25)) << read_file(dir_ / "log");
  const pid_t stopped = children(agent).at(1);
  kill(stopped, SIGSTOP);
  EXPECT_LT(seconds_until(") is stopped"), kPatience) << read_file(dir_ / "log");
  EXPECT_EQ(wait(agent), 0) << read_file(dir_ / "log");
  const std::string log = read_file(dir_ / "log");
  const std::string verdict = "launch: rank 1 (pid " + std::to_string(stopped) + ") is stopped";
  EXPECT_NE(log.find(verdict), std::string::npos) << log;
  EXPECT_NE(log.find("rank 0 waits in #"), std::string::npos) << log;
  EXPECT_NE(log.find("rank 1 is in phase "), std::string::npos) << log;
  std::istringstream dump(read_file(dir_ / "logs/attempt_0/flights_node0.jsonl"));
  int rank = 0;
  for (std::string line; std::getline(dump, line); ++rank) {
    const auto flights = nlohmann::json::parse(line);
    EXPECT_EQ(flights.at("rank"), rank);
    EXPECT_EQ(flights.at("stopped"), rank == 1);
    if (rank == 1) {
      EXPECT_GT(flights.at("silent_seconds").get<double>(), 1.5);
    }
    EXPECT_FALSE(flights.at("operations").empty());
  }
  EXPECT_EQ(rank, 2);
  EXPECT_EQ(restarts("r"), 1);
  expect_calm("r");
}

// The peers detect the lost connection first and offer to join the next attempt. But no process died, so there is
// nothing to replace: the launcher ends the peers, and each of them names the rank that it lost.
TEST_F(DistTrainingRestarts, AStoppedRankThatItsPeersMissIsTheCause) {
  const pid_t agent = start(long_run("r", {"-n", "2"}), {{"RINGMASTER_LIVENESS", "2"}});
  ASSERT_TRUE(reaches("r", 7)) << read_file(dir_ / "log");
  kill(children(agent).at(0), SIGSTOP);
  EXPECT_LT(seconds_until(") is stopped"), kPatience) << read_file(dir_ / "log");
  EXPECT_EQ(wait(agent), 0) << read_file(dir_ / "log");
  EXPECT_EQ(restarts("r"), 1);
}

TEST_F(DistTrainingRestarts, ASlowRankIsNamed) {
  std::vector<std::string> words = long_run("r", {"-n", "2", "--inject", "1:slow@rank=1,phase=forward,wait=15ms"});
  for (const char* word : {"train.steps=64", "train.eval_interval=0", "checkpoint.interval=0"})
    words.emplace_back(word);
  EXPECT_EQ(wait(start(words)), 0) << read_file(dir_ / "log");
  const std::string log = read_file(dir_ / "log");
  EXPECT_NE(log.find("rank 1 is slow: "), std::string::npos) << log;
  EXPECT_NE(log.find("; compute takes "), std::string::npos) << log;
  EXPECT_NE(read_file(dir_ / "r/metrics.jsonl").find("\"slow_rank\""), std::string::npos);
}

// The worker's message about its crash is repeated by the launcher.
TEST_F(DistTrainingRestarts, ACrashSaysWhatTheWorkerDid) {
  const pid_t agent = start(long_run("r", {"-n", "2", "--max-restarts", "0", "--log-dir", "logs"}));
  ASSERT_TRUE(reaches("r", 7)) << read_file(dir_ / "log");
  kill(children(agent).at(1), SIGSEGV);
  EXPECT_EQ(wait(agent), 128 + SIGSEGV) << read_file(dir_ / "log");
  const std::string log = read_file(dir_ / "log");
  EXPECT_NE(log.find("killed by signal 11"), std::string::npos) << log;
  EXPECT_NE(log.find(", in phase "), std::string::npos) << log;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_NE(log.find("  | ringmaster: crashed by signal 11"), std::string::npos) << log;
  EXPECT_NE(log.find("; its last operation is #"), std::string::npos) << log;
  const auto file = nlohmann::json::parse(read_file(dir_ / "logs/attempt_0/rank1.error.json"));
  EXPECT_NE(file.at("message").at("message").get<std::string>().find("crashed by signal 11"), std::string::npos);
#endif
}

// A restart does not delete the results of the first attempt.
TEST_F(DistTrainingRestarts, FreshAppliesToTheFirstAttemptOnly) {
  std::vector<std::string> words = long_run("r", {"-n", "2"});
  words.push_back("--fresh");
  const pid_t agent = start(words);
  EXPECT_NE(kill_worker(agent, "r", 12, 0), 0);
  EXPECT_EQ(wait(agent), 0) << read_file(dir_ / "log");
  EXPECT_NE(read_file(dir_ / "log").find("resuming from step "), std::string::npos) << read_file(dir_ / "log");
}

TEST_F(DistTrainingRestarts, AStepThatAlwaysFailsEndsTheJob) {
  std::vector<std::string> words = long_run("r", {"-n", "2"});
  for (const char* word : {"optimizer.lr=1e30", "optimizer.clip=0", "schedule.warmup_steps=0"})
    words.emplace_back(word);
  EXPECT_EQ(run(words), 1);
  const std::string log = read_file(dir_ / "log");
  EXPECT_NE(log.find("no restart: it failed 3 times"), std::string::npos) << log;
}

TEST_F(DistTrainingRestarts, OptionsComeFromTheEnvironmentLikeTorchruns) {
  const Environment torchrun = {{"PET_NPROC_PER_NODE", "2"}, {"PET_NNODES", "1"}, {"PET_STANDALONE", "true"}};
  const std::vector<std::string> words = {"launch", "--threads_per_worker=1", "train", "t.yaml", "train.steps=1"};
  EXPECT_EQ(wait(start(words, torchrun)), 0) << read_file(dir_ / "log");
  EXPECT_NE(read_file(dir_ / "log").find("2 processes on cpu"), std::string::npos) << read_file(dir_ / "log");
}

// Checkpoints are rare, so a dead worker costs the steps since the launcher's latest snapshot. The state is sharded:
// otherwise the run would continue from the state of the surviving replicas.
class DistKeptInMemory : public DistTrainingRestarts {
 protected:
  static std::vector<std::string> calm_run() {
    std::vector<std::string> words = long_run("calm", {"-n", "2"});
    words.emplace_back("parallel.zero=1");
    return words;
  }
  static std::vector<std::string> kept_run(const std::string& directory, std::vector<std::string> how,
                                           const std::string& interval = "1000") {
    std::vector<std::string> words = long_run(directory, std::move(how));
    words.push_back("checkpoint.interval=" + interval);
    words.emplace_back("checkpoint.memory_interval=4");
    words.emplace_back("parallel.zero=1");
    return words;
  }
  std::string log() const { return read_file(dir_ / "log"); }
  // Returns the steps from which attempts resumed.
  std::vector<int> resumed(const std::string& from) const {
    std::vector<int> steps;
    std::istringstream lines(log());
    const std::string begin = "resuming from step ";
    for (std::string line; std::getline(lines, line);)
      if (const auto at = line.find(begin); at != std::string::npos && line.find(from) != std::string::npos)
        steps.push_back(std::stoi(line.substr(at + begin.size())));
    return steps;
  }
  // Returns paths of an agent's snapshot descriptors: two files in memory for each worker.
  static std::vector<std::string> kept_files_of(pid_t agent) {
    std::vector<std::string> files;
    for (const auto& fd : test::fs::directory_iterator("/proc/" + std::to_string(agent) + "/fd")) {
      std::error_code gone;
      if (test::fs::read_symlink(fd, gone).string().find("ringmaster-kept") != std::string::npos)
        files.push_back(fd.path().string());
    }
    return files;
  }
};

TEST_F(DistKeptInMemory, KilledRanksResumeFromMemoryWithTheSameBits) {
  ASSERT_EQ(run(calm_run()), 0) << log();
  const pid_t agent = start(kept_run("r", {"-n", "2"}));
  EXPECT_NE(kill_worker(agent, "r", 2, 1), 0) << log();  // before the first snapshot: starts from the beginning
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_NE(kill_worker(agent, "r", 15, 0), 0) << log();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_NE(kill_worker(agent, "r", 27, 1), 0) << log();
  EXPECT_EQ(wait(agent), 0) << log();
  const std::vector<int> steps = resumed("(kept in memory");
  ASSERT_GE(steps.size(), 2u) << log();
  EXPECT_GE(steps.back(), 20) << log();
  for (const int step : steps) EXPECT_EQ(step % 4, 0) << log();
  expect_calm("r");
}

TEST_F(DistKeptInMemory, DamagedMemoryFallsBackToFiles) {
  ASSERT_EQ(run(calm_run()), 0) << log();
  const pid_t agent = start(kept_run("r", {"-n", "2"}, "10"));
  ASSERT_TRUE(reaches("r", 15)) << log();
  for (const pid_t worker : children(agent)) kill(worker, SIGSTOP);
  const std::vector<std::string> files = kept_files_of(agent);
  EXPECT_EQ(files.size(), 4u);
  for (const std::string& name : files) {
    std::fstream file(name, std::ios::binary | std::ios::in | std::ios::out);
    const int byte = file.seekg(5000).get();
    file.seekp(5000).put(static_cast<char>(byte ^ 1));
  }
  kill(children(agent).at(0), SIGKILL);
  for (const pid_t worker : children(agent)) kill(worker, SIGCONT);
  EXPECT_EQ(wait(agent), 0) << log();
  EXPECT_NE(log().find("memory is damaged"), std::string::npos) << log();
  EXPECT_EQ(resumed("(kept in memory"), std::vector<int>{}) << log();
  expect_calm("r");
}

// With checkpoint.on_usr1=continue, both ranks get the signal at about the same time.
TEST_F(DistTrainingRestarts, Usr1SavesAndContinues) {
  ASSERT_EQ(run(long_run("calm", {"-n", "2"})), 0) << read_file(dir_ / "log");
  std::vector<std::string> words = long_run("r", {"-n", "2"});
  for (const char* word : {"checkpoint.interval=1000", "checkpoint.on_usr1=continue", "checkpoint.keep_last=100"})
    words.emplace_back(word);
  const pid_t agent = start(words);
  ASSERT_TRUE(reaches("r", 6)) << read_file(dir_ / "log");
  kill(agent, SIGUSR1);
  EXPECT_EQ(wait(agent), 0) << read_file(dir_ / "log");
  const auto folders = test::fs::directory_iterator(dir_ / "r/checkpoints");
  EXPECT_EQ(std::distance(begin(folders), end(folders)), 2) << "that of the signal and the last one";
  EXPECT_EQ(losses("r"), losses("calm"));
}

TEST_F(DistTrainingRestarts, Usr1StopsTheRunByDefault) {
  const pid_t agent = start(long_run("r", {"-n", "2"}));
  ASSERT_TRUE(reaches("r", 6)) << read_file(dir_ / "log");
  kill(agent, SIGUSR1);
  EXPECT_EQ(wait(agent), kExitInterrupted) << read_file(dir_ / "log");
}

// Agents on this machine that act as nodes.
class DistTrainingNodes : public DistTrainingRestarts {
 protected:
  void SetUp() override {
    DistTrainingRestarts::SetUp();
    if (IsSkipped()) return;
    port_ = local_endpoint(listen_on({"127.0.0.1", 0})).port;
    ASSERT_EQ(run({"launch", "--make-secret", "secret"}), 0) << read_file(dir_ / "log");
  }
  std::vector<std::string> words_of_node(const std::string& directory, const char* nodes = "2") const {
    return long_run(directory, {"--nnodes", nodes, "--nproc_per_node=1", "--rdzv-endpoint",
                                "127.0.0.1:" + std::to_string(port_), "--secret-file", "secret"});
  }
  pid_t node(const std::string& directory, const char* log) const { return start(words_of_node(directory), {}, log); }
  // Waits until the agent of rank 0 serves.
  void await_leader(const char* log) const {
    for (const auto begin = Clock::now(); read_file(dir_ / log).find("waiting") == std::string::npos &&
                                          Clock::now() - begin < std::chrono::duration<double>(kPatience);)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  int port_ = 0;
};

TEST_F(DistTrainingNodes, ALostWorkerAndALostAgentGiveTheSameBits) {
  ASSERT_EQ(run(long_run("calm", {"-n", "2"})), 0) << read_file(dir_ / "log");
  const pid_t first = node("r", "first");
  await_leader("first");
  const pid_t second = node("r", "second");
  EXPECT_NE(kill_worker(second, "r", 9, 0), 0) << read_file(dir_ / "first") << read_file(dir_ / "second");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(reaches("r", 22)) << read_file(dir_ / "first");
  kill(second, SIGKILL);
  EXPECT_EQ(wait(second), -SIGKILL);
  const pid_t successor = node("r", "successor");
  EXPECT_EQ(wait(first), 0) << read_file(dir_ / "first");
  EXPECT_EQ(wait(successor), 0) << read_file(dir_ / "successor");
  expect_calm("r");
}

// The agent of node 0 dies with its worker. Another agent leads, and a new one takes the place of the lost node.
TEST_F(DistTrainingNodes, TheLossOfNode0GivesTheSameBits) {
  const auto with_batch = [](std::vector<std::string> words) {
    words.emplace_back("train.batch_size=12");
    return words;
  };
  ASSERT_EQ(run(with_batch(long_run("calm", {"-n", "3"}))), 0) << read_file(dir_ / "log");
  const auto node_of_three = [&](const char* log) { return start(with_batch(words_of_node("r", "3")), {}, log); };
  const pid_t first = node_of_three("first");
  await_leader("first");
  const pid_t second = node_of_three("second"), third = node_of_three("third");
  EXPECT_TRUE(reaches("r", 12)) << read_file(dir_ / "first");
  kill(first, SIGKILL);
  EXPECT_EQ(wait(first), -SIGKILL);
  const pid_t replacement = node_of_three("replacement");
  for (const pid_t agent : {second, third, replacement})
    EXPECT_EQ(wait(agent), 0) << read_file(dir_ / "second") << read_file(dir_ / "third")
                              << read_file(dir_ / "replacement");
  EXPECT_EQ(restarts("r"), 1);
  expect_calm("r");
}

// Returns an address of this machine that others might reach; "" if it has none.
std::string outer_address() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, freeifaddrs);
  for (const ifaddrs* i = all; i; i = i->ifa_next) {
    char host[NI_MAXHOST];
    if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && !(i->ifa_flags & IFF_LOOPBACK) &&
        getnameinfo(i->ifa_addr, sizeof(sockaddr_in), host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0)
      return host;
  }
  return "";
}

// Runs with --nnodes 1:N, which is refused over loopback.
class DistTrainingFewerNodes : public DistTrainingNodes {
 protected:
  void SetUp() override {
    DistTrainingNodes::SetUp();
    if (IsSkipped()) return;
    address_ = outer_address();
    if (address_.empty()) GTEST_SKIP() << "this machine has a loopback address only";
  }
  // `faults`: the argument of --inject.
  pid_t node(const std::string& how_many, const std::vector<std::string>& settings, const char* log,
             const std::string& faults = "") const {
    std::vector<std::string> how = {
        "--nnodes",      how_many, "--nproc_per_node=1", "--rdzv-endpoint", address_ + ":" + std::to_string(port_),
        "--secret-file", "secret"};
    if (!faults.empty()) how.insert(how.end(), {"--inject", faults});
    std::vector<std::string> words = long_run("r", how);
    words.insert(words.end(), settings.begin(), settings.end());
    return start(words, {}, log);
  }
  bool says(const char* log, const std::string& text) const {
    return read_file(dir_ / log).find(text) != std::string::npos;
  }
  std::map<int, nlohmann::json> steps(const std::string& directory) const {
    std::map<int, nlohmann::json> by_step;
    for (const auto& r : records(directory, "train")) by_step[r.at("step").get<int>()] = r;
    return by_step;
  }
  // Returns the seconds until a step has been taken after `restarts` restarts.
  double seconds_until_training(int restarts) const {
    const auto begin = Clock::now();
    const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    for (bool trains = false; !trains && passed() < kPatience;
         std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
      const std::string all = read_file(dir_ / "r/metrics.jsonl");
      const std::size_t at = all.find("\"restarts\":" + std::to_string(restarts) + ",");
      trains = at != std::string::npos && all.find("\"loss\":", at) != std::string::npos;
    }
    return passed();
  }
  std::string address_;
};

// Three nodes and a spare run; then one of the three is left.
TEST_F(DistTrainingFewerNodes, ASpareTakesOverAndTheLastNodeContinuesAlone) {
  const std::vector<std::string> settings = {"train.batch_size=12", "train.steps=80"};
  std::vector<std::string> calm = long_run("calm", {"-n", "3"});
  calm.insert(calm.end(), settings.begin(), settings.end());
  ASSERT_EQ(run(calm), 0) << read_file(dir_ / "log");
  const pid_t first = node("1:3", settings, "first");
  await_leader("first");
  const pid_t second = node("1:3", settings, "second");
  const pid_t third = node("1:3", settings, "third");
  ASSERT_TRUE(reaches("r", 1)) << read_file(dir_ / "first");
  const pid_t spare = node("1:3", settings, "spare");
  EXPECT_LT(seconds_until("waits to replace", "spare"), kPatience) << read_file(dir_ / "spare");
  ASSERT_TRUE(reaches("r", 12)) << read_file(dir_ / "first");
  kill(second, SIGKILL);
  const double replaced = seconds_until_training(1);
  EXPECT_LT(replaced, kPatience) << read_file(dir_ / "first");
  ASSERT_TRUE(reaches("r", 30)) << read_file(dir_ / "first");
  for (const pid_t lost : {third, spare}) kill(lost, SIGKILL);
  const double alone = seconds_until_training(2);
  EXPECT_LT(alone, kPatience) << read_file(dir_ / "first");
  for (const pid_t lost : {second, third, spare}) EXPECT_EQ(wait(lost), -SIGKILL);
  EXPECT_EQ(wait(first), 0) << read_file(dir_ / "first");
  std::cout << "seconds to train again: " << replaced << " with a spare, " << alone << " alone\n";

  EXPECT_TRUE(says("first", "the job continues with 1 worker instead of 3")) << read_file(dir_ / "first");
  const auto all = records("r", "restart");
  ASSERT_EQ(all.size(), 2u);
  const int from = all.back().at("step");
  const auto disturbed = steps("r"), undisturbed = steps("calm");
  ASSERT_EQ(disturbed.size(), 80u);
  for (const auto& [step, r] : disturbed) {
    const auto& c = undisturbed.at(step);
    EXPECT_EQ(r.at("tokens"), c.at("tokens")) << step;
    const double loss = c.at("loss"), slack = step <= from ? 0 : 1e-5 * loss;
    EXPECT_NEAR(r.at("loss").get<double>(), loss, slack) << "step " << step << " of which " << from << " by three";
  }
}

// The job begins with two of at most three nodes. A spare that dies disturbs nobody, and a spare that waits takes part
// after the next failure.
TEST_F(DistTrainingFewerNodes, ANodeThatJoinsLaterTakesPartAfterAFailure) {
  const std::vector<std::string> settings = {"train.batch_size=12", "train.steps=80"};
  const auto start_node = [&](const char* log) {
    std::vector<std::string> words =
        long_run("r", {"--nnodes", "1:3", "--nproc_per_node=1", "--rdzv-conf", "last_call_timeout=2", "--rdzv-endpoint",
                       address_ + ":" + std::to_string(port_), "--secret-file", "secret"});
    words.insert(words.end(), settings.begin(), settings.end());
    return start(words, {}, log);
  };
  const pid_t first = start_node("first");
  await_leader("first");
  const pid_t second = start_node("second");
  ASSERT_TRUE(reaches("r", 1)) << read_file(dir_ / "first");
  const pid_t dead = start_node("dead");
  EXPECT_LT(seconds_until("waits to join", "dead"), 60) << read_file(dir_ / "dead");
  kill(dead, SIGKILL);
  EXPECT_EQ(wait(dead), -SIGKILL);
  const pid_t third = start_node("third");
  EXPECT_LT(seconds_until("waits to join", "third"), 60) << read_file(dir_ / "third");
  ASSERT_TRUE(reaches("r", 12)) << read_file(dir_ / "first");
  EXPECT_FALSE(says("first", "starting all workers again")) << "nobody was disturbed";
  kill(children(second).at(0), SIGKILL);
  for (const pid_t node : {first, second, third}) EXPECT_EQ(wait(node), 0) << read_file(dir_ / "first");
  EXPECT_EQ(restarts("r"), 1);
  EXPECT_TRUE(says("first", "the job continues with 3 workers instead of 2")) << read_file(dir_ / "first");
  EXPECT_TRUE(says("third", "node 2 of 3 on ")) << read_file(dir_ / "third");
  EXPECT_EQ(steps("r").size(), 80u);
}

// Two leaders are lost, one after the other. The nodes that are left continue, at last a single one.
TEST_F(DistTrainingFewerNodes, TheOthersContinueWithoutNode0) {
  const std::vector<std::string> settings = {"train.batch_size=12", "train.steps=80"};
  std::vector<pid_t> agents = {node("1:3", settings, "first")};
  await_leader("first");
  for (const char* log : {"second", "third"}) agents.push_back(node("1:3", settings, log));
  ASSERT_TRUE(reaches("r", 12)) << read_file(dir_ / "first");
  const auto lose = [&](pid_t leader, int restarts) {
    kill(leader, SIGKILL);
    EXPECT_EQ(wait(leader), -SIGKILL);
    return seconds_until_training(restarts);
  };
  const double two = lose(agents[0], 1);
  EXPECT_LT(two, kPatience) << read_file(dir_ / "second") << read_file(dir_ / "third");
  const bool second_leads = says("second", "takes over");
  EXPECT_NE(second_leads, says("third", "takes over")) << "one of them";
  EXPECT_TRUE(says(second_leads ? "second" : "third", "(kept in memory by rank 0)"))
      << read_file(dir_ / "second") << read_file(dir_ / "third");
  const double one = lose(agents[second_leads ? 1 : 2], 2);
  EXPECT_LT(one, kPatience) << read_file(dir_ / "second") << read_file(dir_ / "third");
  EXPECT_EQ(wait(agents[second_leads ? 2 : 1]), 0) << read_file(dir_ / "second") << read_file(dir_ / "third");
  std::cout << "seconds to train again without node 0: " << two << " on two nodes, " << one << " on one\n";
  EXPECT_EQ(restarts("r"), 2);
  EXPECT_EQ(steps("r").size(), 80u);
}

// With one island per node, the surviving node continues alone with the state that it kept. The second node is delayed
// in step 14 until it is killed. The first node has then finished the exchange of weights of step 12 and cannot begin
// that of step 16. In the middle of an exchange it could not keep its state.
TEST_F(DistTrainingFewerNodes, IslandsFollowTheNodes) {
  const std::vector<std::string> settings = {"parallel.islands=0", "parallel.local_steps=4", "train.eval_interval=12"};
  const std::string delay = "7:slow@rank=1,step=14,phase=forward,wait=60s";
  const pid_t first = node("1:2", settings, "first", delay);
  await_leader("first");
  const pid_t second = node("1:2", settings, "second", delay);
  ASSERT_LT(seconds_until("step 12: validation loss", "first"), kPatience) << read_file(dir_ / "first");
  kill(second, SIGKILL);
  EXPECT_EQ(wait(second), -SIGKILL);
  EXPECT_EQ(wait(first), 0) << read_file(dir_ / "first");
  for (const char* text :
       {"parallel.islands: 0 is 2", "2 islands of 1 process train alone", "parallel.islands: 0 is 1"})
    EXPECT_TRUE(says("first", text)) << text << "\n" << read_file(dir_ / "first");
  EXPECT_TRUE(says("first", "there were 2 islands, and now there is 1")) << read_file(dir_ / "first");
  EXPECT_FALSE(says("first", "the settings fit only")) << read_file(dir_ / "first");
  EXPECT_EQ(steps("r").size(), 40u);
}

// The layout needs two nodes. The worker that is left keeps the state until a second node is there again.
TEST_F(DistTrainingFewerNodes, ALayoutThatNeedsMoreNodesWaitsForThem) {
  const std::vector<std::string> settings = {"parallel.cp=2"};
  std::vector<std::string> calm = long_run("calm", {"-n", "2"});
  calm.insert(calm.end(), settings.begin(), settings.end());
  ASSERT_EQ(run(calm), 0) << read_file(dir_ / "log");
  const pid_t first = node("1:2", settings, "first");
  await_leader("first");
  const pid_t second = node("1:2", settings, "second");
  ASSERT_TRUE(reaches("r", 12)) << read_file(dir_ / "first");
  EXPECT_TRUE(says("first", "--nnodes 1:2: the settings fit only ")) << read_file(dir_ / "first");
  kill(second, SIGKILL);
  EXPECT_EQ(wait(second), -SIGKILL);
  EXPECT_LT(seconds_until("node 1 is missing, without", "first"), kPatience) << read_file(dir_ / "first");
  const pid_t successor = node("1:2", settings, "successor");
  EXPECT_EQ(wait(first), 0) << read_file(dir_ / "first");
  EXPECT_EQ(wait(successor), 0) << read_file(dir_ / "successor");
  EXPECT_TRUE(says("first", "launch: 1 worker of this node keeps running (restart 1 ")) << read_file(dir_ / "first");
  EXPECT_FALSE(says("first", "restart 2 of this job")) << read_file(dir_ / "first");
  expect_calm("r");
}

TEST_F(DistTrainingNodes, ASignalToOneNodeStopsAllWithACheckpoint) {
  const pid_t first = node("r", "first");
  await_leader("first");
  const pid_t second = node("r", "second");
  ASSERT_TRUE(reaches("r", 9)) << read_file(dir_ / "first");
  kill(second, SIGTERM);
  EXPECT_EQ(wait(second), kExitInterrupted) << read_file(dir_ / "second");
  EXPECT_EQ(wait(first), kExitInterrupted) << read_file(dir_ / "first");
  for (const char* part : {"the 2 nodes: ringmaster launch", "-- train r"})
    EXPECT_NE(read_file(dir_ / "first").find(part), std::string::npos) << read_file(dir_ / "first");
}

// The second agent has a different folder of the same name.
TEST_F(DistTrainingNodes, ARunDirectoryThatIsNotSharedIsRefused) {
  const test::fs::path elsewhere = dir_ / "elsewhere";
  test::fs::create_directory(elsewhere);
  for (const char* name : {"t.yaml", "corpus.h5", "secret"}) test::fs::copy(dir_ / name, elsewhere / name);
  const pid_t first = node("r", "first");
  await_leader("first");
  std::vector<std::string> command = {"/bin/sh", "-c", "cd \"$0\" && exec \"$@\"", elsewhere, test::ring_binary()};
  const std::vector<std::string> words = words_of_node("r");
  command.insert(command.end(), words.begin(), words.end());
  EXPECT_EQ(test::run_process(command).code, 1);
  EXPECT_EQ(wait(first), 1);
  const std::string log = read_file(dir_ / "first");
  EXPECT_NE(log.find("run.directory: r is not the same"), std::string::npos) << log;
  EXPECT_EQ(log.find("again"), std::string::npos) << log;
  for (const test::fs::path& folder : {dir_, elsewhere}) {
    EXPECT_FALSE(test::fs::exists(folder / "r")) << "nothing was written";
    for (const auto& entry : test::fs::directory_iterator(folder))
      EXPECT_EQ(entry.path().filename().string().find(".seen"), std::string::npos) << entry.path();
  }
}

// A thousand connections of strangers reach the store of the agents and that of the workers during training.
TEST_F(DistTrainingNodes, AThousandStrangersDoNotDisturb) {
  ASSERT_EQ(run(long_run("calm", {"-n", "2"})), 0) << read_file(dir_ / "log");
  const pid_t first = node("r", "first");
  await_leader("first");
  const pid_t second = node("r", "second");
  ASSERT_TRUE(reaches("r", 5)) << read_file(dir_ / "first");
  const std::string environment = read_file("/proc/" + std::to_string(children(first).at(0)) + "/environ");
  const std::string name = "RINGMASTER_STORE=";
  const std::size_t at = environment.find(name) + name.size();
  const Endpoint workers = parse_endpoint(environment.substr(at, environment.find('\0', at) - at));
  EXPECT_EQ(environment.find("RINGMASTER_COOKIE"), std::string::npos);
  std::vector<Fd> strangers;
  const auto soon = AwakeClock::now() + std::chrono::seconds(20);
  for (int i = 0; i < 1000; ++i) {
    try {
      strangers.push_back(connect_to(i % 2 ? workers : Endpoint{"127.0.0.1", port_}, soon));
      if (i % 3) send_all(strangers.back(), i % 3 == 1 ? "GET / HTTP/1.1\r\n\r\n" : std::string(64, '\xff'), soon);
    } catch (const Error&) {  // already disconnected
    }
  }
  EXPECT_EQ(wait(first), 0) << read_file(dir_ / "first");
  EXPECT_EQ(wait(second), 0) << read_file(dir_ / "second");
  EXPECT_EQ(read_file(dir_ / "first").find("starting all workers again"), std::string::npos)
      << read_file(dir_ / "first");
  expect_calm("r");
}

}  // namespace
}  // namespace ring
