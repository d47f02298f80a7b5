// Runs of the program that save during training.
#include <fcntl.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <set>
#include <thread>

#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "core/exit_code.h"
#include "tests/paths.h"
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

class SavingRuns : public Runs {
 protected:
  using Json = nlohmann::json;
  std::vector<Json> saves(const std::string& run) const {
    std::vector<Json> found;
    std::ifstream file(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (const auto json = Json::parse(line, nullptr, false); json.is_object() && json.at("group") == "checkpoint")
        found.push_back(json);
    return found;
  }
  std::vector<std::string> launch(int processes, std::vector<std::string> command) const {
    const std::vector<std::string> front = {ring_binary(), "launch", "--nproc-per-node", std::to_string(processes),
                                            "--"};
    command.erase(command.begin());
    command.insert(command.begin(), front.begin(), front.end());
    command.push_back("run.threads=1");
    command.push_back("train.micro_batch=1");
    return command;
  }
  bool wait_for(const Process& process, const std::function<bool()>& condition) const {
    while (!condition()) {
      if (!process.running()) return condition();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  // Stops the process and waits until it has stopped.
  void stop(const Process& process) const {
    process.signal(SIGSTOP);
    const auto is_stopped = [&] {
      const std::string stat = text_of("/proc/" + std::to_string(process.pid()) + "/stat");
      return stat.substr(stat.rfind(')') + 1, 2) == " T";
    };
    ASSERT_TRUE(wait_for(process, is_stopped));
  }
  // Swaps the folder of checkpoints with a file, so that no checkpoint can be written, or swaps it back.
  void swap_checkpoints(const std::string& run) const {
    const std::string folder = path(run + "/checkpoints"), other = path(run + "/aside");
    if (!fs::exists(other)) std::ofstream(other) << "no folder";
    ASSERT_EQ(::renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE), 0);
  }
  static std::string text_of(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // Returns the bytes of all shards of all checkpoints.
  std::map<std::string, std::string> shards(const std::string& run) const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / run / "checkpoints"))
      if (entry.path().extension() == ".h5")
        all[fs::relative(entry.path(), folder_ / run).string()] = text_of(entry.path());
    return all;
  }
  void expect_saves_resume(const std::vector<std::string>& command, const std::string& run) const;
};

TEST_F(SavingRuns, BothModesWriteTheSameCheckpoints) {
  const std::vector<std::string> keep = {"train.steps=40", "checkpoint.keep_last=100"};
  for (const char* mode : {"async", "blocking"}) {
    std::vector<std::string> settings = keep;
    settings.push_back(std::string("checkpoint.mode=") + mode);
    ASSERT_EQ(run_process(train(mode, settings)).code, 0);
    const std::vector<Json> all = saves(mode);
    ASSERT_EQ(all.size(), 8u);
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].at("step"), 5 * (i + 1));
      EXPECT_EQ(all[i].at("errors"), 0);
      EXPECT_GT(all[i].at("stall_seconds"), 0);
      EXPECT_GT(all[i].at("seconds"), 0);
    }
  }
  EXPECT_EQ(losses("async"), losses("blocking"));
  EXPECT_EQ(shards("async").size(), 8u);
  EXPECT_EQ(shards("async"), shards("blocking"));
}

// The run cannot write checkpoints for a while.
void SavingRuns::expect_saves_resume(const std::vector<std::string>& command, const std::string& run) const {
  Process process(command);
  ASSERT_TRUE(wait_for(process, [&] { return saves(run).size() >= 2; })) << process.wait().output;
  swap_checkpoints(run);
  const auto failed = [&] {
    std::set<std::int64_t> steps;
    for (const Json& s : saves(run))
      if (s.contains("error")) steps.insert(s.at("step").get<std::int64_t>());
    return steps.size();
  };
  EXPECT_TRUE(wait_for(process, [&] { return failed() >= 2; }));
  swap_checkpoints(run);
  const Finished f = process.wait();
  EXPECT_EQ(f.code, 0) << f.output;
  EXPECT_NE(f.output.find("(consecutive failure 1)"), std::string::npos) << f.output;
  const std::vector<Json> all = saves(run);
  EXPECT_FALSE(all.back().contains("error"));
  EXPECT_GE(all.back().at("errors"), 2);
  EXPECT_EQ(all.back().at("step"), 400);
  for (const auto& entry : fs::directory_iterator(folder_ / run / "checkpoints"))
    EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
  EXPECT_EQ(ring({"checkpoint", "verify", path(run)}).code, 0);
}

TEST_F(SavingRuns, ContinueWithoutADiskAndSaveOnceItIsBack) {
  for (const char* mode : {"async", "blocking"})
    expect_saves_resume(train(mode, {"train.steps=400", "train.eval_interval=0", "checkpoint.interval=20",
                                     std::string("checkpoint.mode=") + mode}),
                        mode);
}

// The first process is stopped in the middle of a save. Another process, on a host where the lock has no effect,
// assumes that the first is dead and resumes the run.
TEST_F(SavingRuns, AStoppedProcessCommitsNothingAfterATakeover) {
  const std::vector<std::string> words = train("run", {"train.steps=100000", "train.eval_interval=0"});
  Process older(words);
  ASSERT_TRUE(wait_for(older, [&] { return saves("run").size() >= 2; }));
  const auto is_saving = [&] {
    older.signal(SIGSTOP);
    for (const auto& entry : fs::directory_iterator(folder_ / "run/checkpoints"))
      if (entry.path().extension().string().starts_with(".tmp-")) return true;
    older.signal(SIGCONT);
    return false;
  };
  ASSERT_TRUE(wait_for(older, is_saving));
  fs::remove(folder_ / "run/lock");
  Process newer(words);
  const auto token_of_newest = [&] {
    const auto all = list_checkpoints(path("run/checkpoints"));
    return all.empty() ? 0 : read_manifest(all.back().path).token;
  };
  ASSERT_TRUE(wait_for(newer, [&] { return token_of_newest() == 2; })) << newer.wait().output;
  const std::string taken_over = std::to_string(older.pid()) + " on ";
  older.signal(SIGCONT);
  const Finished f = older.wait();
  EXPECT_EQ(f.code, kExitTakenOver) << f.output;
  for (const std::string& part : {std::string("has taken over this run"), std::to_string(newer.pid()) + " on ",
                                  std::string("token 2"), taken_over, std::string("commits no more checkpoints")})
    EXPECT_NE(f.output.find(part), std::string::npos) << part << " in: " << f.output;
  newer.signal(SIGTERM);
  EXPECT_EQ(newer.wait().code, kExitInterrupted);
  EXPECT_EQ(token_of_newest(), 2);
  EXPECT_EQ(ring({"checkpoint", "verify", path("run")}).code, 0);
}

// A moved or removed directory ends the run, and nothing is written where the directory was.
TEST_F(SavingRuns, AMovedOrRemovedDirectoryEndsTheRunAndIsNamed) {
  for (const char* act : {"moved", "removed"}) {
    Process process(train("run", {"train.steps=100000", "train.eval_interval=0"}));
    ASSERT_TRUE(wait_for(process, [&] { return saves("run").size() >= 2; })) << process.wait().output;
    if (act == std::string("moved")) {
      fs::rename(path("run"), path(act));
    } else {
      stop(process);  // nothing is written during the removal
      fs::remove_all(path("run"));
      process.signal(SIGCONT);
    }
    const Finished f = process.wait();
    EXPECT_EQ(f.code, kExitError) << f.output;
    const std::string said = act == std::string("moved") ? "ringmaster train " + fs::canonical(path(act)).string()
                                                         : path("run") + " was removed while";
    EXPECT_NE(f.output.find(said), std::string::npos) << f.output;
    EXPECT_FALSE(fs::exists(path("run"))) << act;
  }
  const std::int64_t step = list_checkpoints(path("moved/checkpoints")).back().step;
  const Finished f = ring({"train", path("moved"), "train.minutes=0.000001"});
  EXPECT_EQ(f.code, 0) << f.output;
  EXPECT_NE(f.output.find("resuming from step " + std::to_string(step)), std::string::npos) << f.output;
}

TEST_F(SavingRuns, Usr1SavesAndContinuesIfConfigured) {
  Process process(train("run", {"train.steps=400", "checkpoint.interval=0", "checkpoint.on_usr1=continue"}));
  ASSERT_TRUE(wait_for(process, [&] { return losses("run").size() >= 5; }));
  process.signal(SIGUSR1);
  ASSERT_TRUE(wait_for(process, [&] { return saves("run").size() == 1; }));
  const Finished f = process.wait();
  EXPECT_EQ(f.code, 0) << f.output;
  EXPECT_EQ(saves("run").size(), 2u) << f.output;
  EXPECT_NE(f.output.find("because of SIGUSR1"), std::string::npos) << f.output;
}

TEST_F(SavingRuns, StopWithoutADiskIfConfigured) {
  Process process(train("run", {"train.steps=100000", "checkpoint.on_error=stop"}));
  ASSERT_TRUE(wait_for(process, [&] { return saves("run").size() >= 1; }));
  swap_checkpoints("run");
  const Finished f = process.wait();
  EXPECT_EQ(f.code, 1);
  EXPECT_NE(f.output.find("checkpoint "), std::string::npos) << f.output;
}

TEST_F(SavingRuns, ASaveThatASignalAskedForMustSucceed) {
  Process process(train("run", {"train.steps=100000"}));
  ASSERT_TRUE(wait_for(process, [&] { return saves("run").size() >= 1; }));
  swap_checkpoints("run");
  process.signal(SIGTERM);
  const Finished f = process.wait();
  EXPECT_EQ(f.code, 1) << f.output;
  swap_checkpoints("run");
  EXPECT_EQ(run_process(train("run", {"train.steps=100000", "train.minutes=0.0001"})).code, 0);
}

TEST_F(SavingRuns, SavesMayBeTimedByTheClockAlone) {
  ASSERT_EQ(run_process(train("steps", {"train.steps=200", "checkpoint.interval=0"})).code, 0);
  EXPECT_EQ(saves("steps").size(), 1u);
  ASSERT_EQ(run_process(train("clock", {"train.steps=200", "checkpoint.interval=0", "checkpoint.minutes=0.0002"})).code,
            0);
  EXPECT_GE(saves("clock").size(), 3u);
  ASSERT_EQ(run_process(train("auto", {"train.steps=300", "checkpoint.auto=true"})).code, 0);
  EXPECT_EQ(saves("auto").size(), 1u);  // with a day between failures, no save is due yet
  ASSERT_EQ(
      run_process(train("often", {"train.steps=300", "checkpoint.auto=true", "checkpoint.mtbf_hours=0.0001"})).code, 0);
  EXPECT_GE(saves("often").size(), 2u);
  EXPECT_GT(saves("often").back().at("auto_seconds"), 0);
  EXPECT_EQ(losses("auto"), losses("often"));
}

TEST_F(SavingRuns, KillsAreCounted) {
  const auto failures = [&] {
    std::ifstream file(folder_ / "run" / "failures.json");
    return Json::parse(file);
  };
  for (int kill = 0; kill < 2; ++kill) {
    Process process(train("run", {"train.steps=100000"}));
    const std::size_t before = records("run");
    ASSERT_TRUE(wait_for(process, [&] { return records("run") > before + 2; }));
    process.signal(SIGKILL);
    process.wait();
  }
  EXPECT_EQ(failures(), Json::parse(R"({"failures": 1, "running": true})"));
  ASSERT_EQ(run_process(train("run", {"train.steps=100000", "train.minutes=0.0001"})).code, 0);
  EXPECT_EQ(failures(), Json::parse(R"({"failures": 2, "running": false})"));
}

class DistSavingRuns : public SavingRuns {};

TEST_F(DistSavingRuns, BothModesWriteTheSameCheckpoints) {
  for (const char* mode : {"async", "blocking"}) {
    const Finished f =
        run_process(launch(2, train(mode, {"train.steps=30", "checkpoint.keep_last=100", "checkpoint.minutes=1e8",
                                           std::string("checkpoint.mode=") + mode})));
    ASSERT_EQ(f.code, 0) << f.output;
  }
  EXPECT_EQ(losses("async"), losses("blocking"));
  EXPECT_EQ(shards("async").size(), 12u);
  EXPECT_EQ(shards("async"), shards("blocking"));
}

// The launcher's copy of the state outlives the directory: the job continues from the copy in a new directory, with
// bit-identical results. A launcher without a copy does not restart the run from step 0.
TEST_F(DistSavingRuns, ARemovedDirectoryCostsNoStepThatTheLauncherHolds) {
  const auto lose_directory = [&](const std::string& run, const std::string& memory) {
    std::vector<std::string> words = launch(2, train(run, {"train.steps=100", "train.eval_interval=0", memory}));
    words.insert(words.begin() + 2, {"--inject", "1:slow@rank=all,phase=data,wait=50ms"});  // until the restart
    Process process(words);
    EXPECT_TRUE(wait_for(process, [&] { return saves(run).size() >= 2; }));
    fs::rename(path(run), path("gone-" + run));
    return process.wait();
  };
  const Finished kept = lose_directory("kept", "checkpoint.memory_interval=1");
  EXPECT_EQ(kept.code, 0) << kept.output;
  EXPECT_NE(kept.output.find("no longer leads to"), std::string::npos) << kept.output;
  EXPECT_NE(kept.output.find("(kept in memory"), std::string::npos) << kept.output;
  ASSERT_EQ(run_process(launch(2, train("calm", {"train.steps=100", "train.eval_interval=0"}))).code, 0);
  EXPECT_EQ(tensors("kept", "step-000000100"), tensors("calm", "step-000000100"));

  const Finished lost = lose_directory("lost", "checkpoint.memory_interval=0");
  EXPECT_EQ(lost.code, kExitError) << lost.output;
  EXPECT_NE(lost.output.find(path("lost") + " was removed or moved"), std::string::npos) << lost.output;
  EXPECT_TRUE(list_checkpoints(path("lost/checkpoints")).empty());
  EXPECT_FALSE(list_checkpoints(path("gone-lost/checkpoints")).empty());
}

TEST_F(DistSavingRuns, ContinueWithoutADiskAndSaveByOneClock) {
  expect_saves_resume(launch(2, train("run", {"train.steps=400", "train.eval_interval=0", "checkpoint.interval=0",
                                              "checkpoint.minutes=0.0005"})),
                      "run");
}

}  // namespace
}  // namespace ring::test
