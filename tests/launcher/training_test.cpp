// Data parallel training with the program: losses do not depend on the number of processes, results are bit-identical
// from run to run, and a dead worker ends the run.

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/devices.h"
#include "core/exit_code.h"
#include "tests/launcher/training.h"

namespace ring {
namespace {

using test::read_file;
using Clock = std::chrono::steady_clock;

class DistTraining : public test::TrainingRuns {};

TEST_F(DistTraining, LossesDoNotDependOnTheNumberOfProcesses) {
  std::vector<double> one;
  for (const int n : {1, 2, 4}) {
    const std::string directory = "r" + std::to_string(n);
    ASSERT_EQ(run(launch(n, directory)), 0) << read_file(dir_ / "log");
    const std::vector<double> now = losses(directory);
    ASSERT_GE(now.size(), 8u);
    if (n == 1) one = now;
    ASSERT_EQ(now.size(), one.size());
    // Sums of fp32 in a different order: 1e-5 relative after 8 steps.
    for (std::size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(now[i], one[i], 1e-5 * one[i]) << n << " processes, record " << i;
  }
  EXPECT_LT(one.back(), one.front());
}

TEST_F(DistTraining, RunsGiveTheSameBits) {
  for (const char* directory : {"a", "b"}) ASSERT_EQ(run(launch(2, directory)), 0) << read_file(dir_ / "log");
  EXPECT_EQ(losses("a"), losses("b"));
  const std::string a = shard("a"), b = shard("b");
  ASSERT_GT(a.size(), 1000u);
  EXPECT_TRUE(a == b) << "the checkpoints differ";
}

// Steps of some layouts cannot be replayed: a user who asks for that is told once.
TEST_F(DistTraining, ACudaGraphThatHasNoEffectIsNamed) {
  for (const bool asked : {true, false}) {
    const std::string directory = asked ? "on" : "auto";
    std::vector<std::string> words = launch(2, directory, "train.cuda_graph=" + directory);
    words.emplace_back("parallel.zero=1");
    ASSERT_EQ(run(words), 0) << read_file(dir_ / "log");
    const std::string log = read_file(dir_ / "log"), text = "on has no effect";
    const std::size_t at = log.find(text);
    EXPECT_EQ(at != std::string::npos, asked) << log;
    if (asked) {
      EXPECT_EQ(log.find(text, at + 1), std::string::npos) << "more than one rank says it: " << log;
    }
  }
  EXPECT_EQ(losses("on"), losses("auto"));
  EXPECT_TRUE(shard("on") == shard("auto")) << "the checkpoints differ";
}

class GpuDistTraining : public DistTraining {
 protected:
  void SetUp() override {
    if (device_count(Backend::cuda) < 2) GTEST_SKIP() << "fewer than two GPUs";
    DistTraining::SetUp();
  }
  // Runs 24 steps with evaluations and saves in between. Returns the log.
  std::string train(const std::string& directory, const std::vector<std::string>& more) const {
    std::vector<std::string> words = launch(2, directory, "train.steps=24");
    for (const char* setting : {"run.device=cuda", "run.tuning=tuning.yaml", "model.width=128", "model.context=64"})
      words.emplace_back(setting);
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_EQ(run(words), 0) << read_file(dir_ / "log");
    return read_file(dir_ / "log");
  }
};

constexpr const char* kReplayed = "steps are replayed";

TEST_F(GpuDistTraining, ReplayedStepsGiveTheSameBits) {
  train("measures", {});
  for (const std::vector<std::string>& kind :
       {std::vector<std::string>{}, {"train.micro_batch=2", "parallel.reduce=bf16", "model.dropout=0.1"}}) {
    const auto with = [&](const char* graph) {
      std::vector<std::string> settings = kind;
      settings.emplace_back(graph);
      return settings;
    };
    const std::string n = std::to_string(kind.size());
    EXPECT_EQ(train("plain" + n, with("train.cuda_graph=off")).find(kReplayed), std::string::npos);
    EXPECT_NE(train("replayed" + n, with("train.cuda_graph=on")).find(kReplayed), std::string::npos);
    EXPECT_EQ(losses("plain" + n), losses("replayed" + n));
    EXPECT_TRUE(shard("plain" + n) == shard("replayed" + n)) << "the checkpoints differ";
  }
}

class DistTrainingRefusals : public DistTraining {
 protected:
  std::string log() const { return read_file(dir_ / "log"); }
  int times(const std::string& text) const {
    int n = 0;
    const std::string all = log();
    for (std::size_t at = 0; (at = all.find(text, at)) != std::string::npos; ++at) ++n;
    return n;
  }
  void expect_refused(int processes, const std::string& override, const std::string& text) const {
    EXPECT_EQ(run(launch(processes, "r", override)), 1) << log();
    EXPECT_EQ(times(text), 1) << text << "\n" << log();
    EXPECT_EQ(times("stopping"), 0) << log();
  }
};

TEST_F(DistTrainingRefusals, ArePrintedOnceAndNameValuesThatFit) {
  expect_refused(2, "train.batch_size=7", "2 replicas (parallel.dp)");
  EXPECT_EQ(times("7 sequences"), 1) << log();
  expect_refused(2, "data.path=no.h5", "cannot open no.h5");
  expect_refused(2, "parallel.tp=3", "model.heads = 4, model.kv_heads = 4 and model.mlp_width = 96");
  EXPECT_EQ(times("allows 1 or 2 on 2 processes\n"), 1) << log();
  expect_refused(3, "parallel.tp=3", "allows 1 on 3 processes\n");
  expect_refused(2, "parallel.tp=4", "ringmaster launch --nproc-per-node 4 -- train ..");
  EXPECT_EQ(times("parallel.tp can be 1 or 2"), 1) << log();
}

TEST_F(DistTrainingRefusals, NodesMustDivideTheRing) {
  std::vector<std::string> command = launch(2, "r", "parallel.cp=2");
  command.push_back("parallel.cp_ranks_per_node=3");
  EXPECT_EQ(run(command), 1);
  EXPECT_EQ(times("parallel.cp_ranks_per_node: 3"), 1) << log();
  EXPECT_EQ(times("the 2 processes of parallel.cp"), 1) << log();
  EXPECT_EQ(times("is false at"), 0) << log();
}

TEST_F(DistTrainingRefusals, CommandsOfOneProcessAreNotLaunched) {
  EXPECT_EQ(run({"launch", "-n", "2", "--", "eval", "runs/t", "--json"}), 1);
  EXPECT_EQ(times("eval runs in one process"), 1) << log();
  EXPECT_EQ(times("ringmaster eval runs/t --json"), 1) << log();
  EXPECT_EQ(run({"launch", "-n", "2", "t.yaml"}), 1);
  EXPECT_EQ(times("unknown command 't.yaml'"), 1) << log();
  EXPECT_EQ(run({"launch", "-n", "2", "--", "train", "--frehs", "t.yaml"}), kExitUsage);
  EXPECT_EQ(times("--frehs"), 1) << log();
  EXPECT_EQ(run({"launch", "--thread", "2", "-n", "2", "--", "train", "t.yaml"}), kExitUsage);
  EXPECT_EQ(times("unknown option --thread;"), 1) << log();
  EXPECT_EQ(times("--threads-per-worker?"), 1) << log();
}

TEST_F(DistTrainingRefusals, TheSeparatorMayBeOmitted) {
  EXPECT_EQ(run({"launch", "-n", "2", "train", "--fresh", "t.yaml", "model.vocab_size=300", "train.steps=1",
                 "optimizer.moments=bf16"}),
            0)
      << log();
  EXPECT_EQ(times("1 step of 128 tokens, 2 processes on cpu (dp 2)"), 1) << log();
  EXPECT_EQ(times("model.vocab_size: 300 is larger"), 1) << log();
  EXPECT_EQ(times("vocabulary of the corpus, 257"), 1) << log();
  EXPECT_EQ(times("CPUs compute in fp32"), 1) << log();
  // The 43 ids beyond the tokenizer's vocabulary must never be drawn: among 200 random tokens one would appear.
  EXPECT_EQ(run({"generate", "runs/t", "--temperature", "100", "--max-tokens", "200"}), 0) << log();
}

TEST_F(DistTrainingRefusals, AReferenceOfOneTokenIsRefused) {
  const auto bench = [&](const std::string& alone) {
    return run({"launch",     "-n",   "2",         "--", "bench",         "context", "--device",  "cpu",
                "--length",   "64",   "--heads",   "2",  "--head-dim",    "8",       "--seconds", "1e-6",
                "--schedule", "ring", "--threads", "1",  "--alone-up-to", alone});
  };
  EXPECT_EQ(bench("1"), 1);
  EXPECT_EQ(times("--alone-up-to: expected at least 64"), 1) << log();
  EXPECT_EQ(bench("0"), 0) << log();
  EXPECT_EQ(times("      -"), 2) << log();  // one cell for the forward pass, one for both passes
  EXPECT_EQ(bench("64"), 0) << log();
  EXPECT_EQ(times("      -"), 0) << log();
}

class DistTrainingBenchmarks : public DistTraining {};

// Collectives between the processes are measured with the rest.
TEST_F(DistTrainingBenchmarks, SeveralProcessesAreCalibratedTogether) {
  ASSERT_EQ(run({"launch", "-n", "2", "--", "bench", "calibrate", "t.yaml", "--out", "rates.yaml", "run.threads=1"}), 0)
      << read_file(dir_ / "log");
  const std::string rates = read_file(dir_ / "rates.yaml");
  EXPECT_NE(rates.find("collective_bytes_per_second: "), std::string::npos) << rates;
  EXPECT_EQ(rates.find("collective_bytes_per_second: 0\n"), std::string::npos) << rates;
}

// Two processes as other launchers start them.
class DistTrainingLaunchers : public DistTraining {
 protected:
  static Environment srun(int rank) {
    const std::string r = std::to_string(rank);
    return {{"SLURM_JOB_ID", std::to_string(getpid())},
            {"SLURM_STEP_ID", "0"},
            {"SLURM_PROCID", r},
            {"SLURM_STEP_NUM_TASKS", "2"},
            {"SLURM_NTASKS", "2"},
            {"SLURM_LOCALID", r},
            {"SLURM_STEP_NUM_NODES", "1"},
            {"SLURM_STEP_NODELIST", "n1"}};
  }
  static Environment torchrun(int rank) {
    const std::string r = std::to_string(rank);
    return {{"TORCHELASTIC_RUN_ID", std::to_string(getpid())},
            {"TORCHELASTIC_RESTART_COUNT", "0"},
            {"RANK", r},
            {"WORLD_SIZE", "2"},
            {"LOCAL_RANK", r},
            {"LOCAL_WORLD_SIZE", "2"},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(23000 + getpid() % 5000)}};
  }
  // Returns the last message of rank 0 in a run that ran out of time.
  std::string train(Environment (*environment)(int)) const {
    const std::vector<std::string> words = {"train",         "t.yaml", "train.steps=0", "train.minutes=0.001",
                                            "run.threads=1", "--fresh"};
    const pid_t other = start(words, environment(1), "other"), leader = start(words, environment(0));
    EXPECT_EQ(wait(leader), 0) << read_file(dir_ / "log");
    EXPECT_EQ(wait(other), 0) << read_file(dir_ / "other");
    return read_file(dir_ / "log");
  }
};

TEST_F(DistTrainingLaunchers, TheResumeCommandNamesTheLauncher) {
  const std::string by_srun = train(srun), by_torchrun = train(torchrun);
  EXPECT_NE(by_srun.find("srun --ntasks 2 ringmaster train runs/t train.minutes=...\n"), std::string::npos) << by_srun;
  EXPECT_NE(by_torchrun.find("torchrun --no-python --nproc-per-node 2 ringmaster train runs/t"), std::string::npos)
      << by_torchrun;
}

TEST_F(DistTrainingLaunchers, AMissingRankIsNamedAfterTheTimeout) {
  Environment lonely = srun(0);
  lonely["RINGMASTER_COMM_TIMEOUT"] = "1";
  const auto begin = Clock::now();
  EXPECT_EQ(wait(start({"train", "t.yaml"}, lonely)), 1);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(100));
  const std::string log = read_file(dir_ / "log");
  EXPECT_NE(log.find("rank 1 did not arrive within 1 s"), std::string::npos) << log;
  EXPECT_NE(log.find("can it reach 127.0.0.1:"), std::string::npos) << log;
}

class DistTrainingSignals : public DistTraining {
 protected:
  // Returns the pid of the worker at `index` among the agent's children; 0 until the run has written a step.
  pid_t child_of(pid_t agent, std::size_t index) const {
    if (losses_text("r").empty()) return 0;
    std::istringstream list(
        read_file("/proc/" + std::to_string(agent) + "/task/" + std::to_string(agent) + "/children"));
    std::vector<pid_t> children;
    for (pid_t p; list >> p;) children.push_back(p);
    return index < children.size() ? children[index] : 0;
  }
  std::string losses_text(const std::string& directory) const { return read_file(dir_ / directory / "metrics.jsonl"); }
};

TEST_F(DistTrainingSignals, ADeadWorkerEndsTheRunAndIsNamed) {
  std::vector<std::string> command = launch(2, "r", "train.steps=1000000");
  command.insert(command.begin() + 1, {"--max-restarts", "0"});
  const pid_t agent = start(command);
  pid_t victim = 0;
  for (const auto begin = Clock::now(); !victim && Clock::now() - begin < std::chrono::seconds(100);) {
    victim = child_of(agent, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (!victim)
    kill(agent, SIGKILL);
  else
    kill(victim, SIGKILL);
  const auto killed = Clock::now();
  EXPECT_EQ(wait(agent), 128 + SIGKILL);
  EXPECT_LT(Clock::now() - killed, std::chrono::seconds(100));  // for a busy machine; the run would train for hours
  const std::string log = read_file(dir_ / "log");
  EXPECT_NE(log.find("rank 1 (pid " + std::to_string(victim) + ") was killed by signal 9"), std::string::npos) << log;
}

TEST_F(DistTrainingSignals, TerminationWritesACheckpoint) {
  const pid_t agent = start(launch(2, "r", "train.steps=1000000"));
  for (const auto begin = Clock::now(); !child_of(agent, 1) && Clock::now() - begin < std::chrono::seconds(100);)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  kill(agent, SIGTERM);
  EXPECT_EQ(wait(agent), kExitInterrupted) << read_file(dir_ / "log");
  EXPECT_FALSE(shard("r").empty()) << "no checkpoint was written";
}

}  // namespace
}  // namespace ring
