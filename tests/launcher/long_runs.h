#pragma once
// A fixture with training runs that last long enough to be disturbed, and helpers to disturb them.

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>

#include "tests/launcher/training.h"

namespace ring::test {

// A fixture whose runs have 40 steps and save a checkpoint every five steps.
class LongRuns : public TrainingRuns {
 protected:
  static constexpr double kPatience = 100;  // seconds, for a busy machine
  using Clock = std::chrono::steady_clock;

  static std::vector<std::string> long_run(const std::string& directory, std::vector<std::string> how) {
    std::vector<std::string> words = {"launch", "--threads-per-worker", "1"};
    words.insert(words.end(), how.begin(), how.end());
    for (const char* word :
         {"--", "train", "t.yaml", "train.steps=40", "checkpoint.interval=5", "train.eval_interval=20"})
      words.emplace_back(word);
    words.push_back("run.directory=" + directory);
    return words;
  }
  bool reaches(const std::string& directory, std::size_t steps) const {
    for (const auto begin = Clock::now(); Clock::now() - begin < std::chrono::duration<double>(kPatience);) {
      if (losses_now(directory).size() >= steps) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    return false;
  }
  // Returns the losses so far. Skips an incomplete line, since the file is still being written.
  std::vector<double> losses_now(const std::string& directory) const {
    std::istringstream lines(read_file(dir_ / directory / "metrics.jsonl"));
    std::vector<double> out;
    for (std::string line; std::getline(lines, line);)
      if (const auto record = nlohmann::json::parse(line, nullptr, false);
          record.is_object() && record.contains("loss"))
        out.push_back(record["loss"].get<double>());
    return out;
  }
  static std::vector<pid_t> children(pid_t agent) {
    std::istringstream list(
        read_file("/proc/" + std::to_string(agent) + "/task/" + std::to_string(agent) + "/children"));
    std::vector<pid_t> pids;
    for (pid_t p; list >> p;) pids.push_back(p);
    return pids;
  }
  // Kills a worker once the run has done `steps` steps. Returns the worker's pid; 0 if there was no such worker.
  pid_t kill_worker(pid_t agent, const std::string& directory, std::size_t steps, std::size_t worker) const {
    if (!reaches(directory, steps)) return 0;
    const std::vector<pid_t> workers = children(agent);
    if (worker >= workers.size()) return 0;
    kill(workers[worker], SIGKILL);
    return workers[worker];
  }
  // Returns the seconds until the log contains `text`, or at least kPatience if it does not.
  double seconds_until(const std::string& text, const char* log = "log") const {
    const auto begin = Clock::now();
    const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    while (read_file(dir_ / log).find(text) == std::string::npos && passed() < kPatience)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return passed();
  }
  // Expects the losses and checkpoints of the undisturbed run, "calm", which restarts must not change.
  void expect_calm(const std::string& directory) const {
    EXPECT_EQ(losses(directory), losses("calm"));
    const auto newest = [&](const std::string& run) {
      return read_file(dir_ / run / "checkpoints/step-000000040/manifest.json");
    };
    ASSERT_FALSE(newest("calm").empty());
    EXPECT_EQ(nlohmann::json::parse(newest(directory)).at("tensors"),
              nlohmann::json::parse(newest("calm")).at("tensors"));
    EXPECT_TRUE(shard(directory) == shard("calm")) << "the bytes of the checkpoints differ";
  }
  int restarts(const std::string& directory) const {
    std::ifstream lines(dir_ / directory / "metrics.jsonl");
    int n = 0;
    for (std::string line; std::getline(lines, line);) {
      const auto record = nlohmann::json::parse(line);
      if (record["group"] != "restart") continue;
      EXPECT_EQ(record["restarts"], ++n);
      EXPECT_GT(record["seconds_lost"].get<double>(), 0);
    }
    return n;
  }
};

}  // namespace ring::test
