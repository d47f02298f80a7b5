// Ranks that run out of memory during a step: the job continues by itself with less memory, and says so.

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "core/check.h"
#include "core/devices.h"
#include "core/exit_code.h"
#include "tests/launcher/training.h"

namespace ring {
namespace {

using test::read_file;

// Reads a number from an environment variable, with which a person can ask for more than a test does by default.
int number_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : otherwise;
}

class OutOfMemoryRuns : public test::TrainingRuns {
 protected:
  // Sequences are long enough that recomputation saves memory.
  static constexpr const char* kShape[] = {"model.context=64", "model.layers=3", "train.micro_batch=2"};

  int run_with_faults(const std::string& faults, const std::string& directory,
                      const std::vector<std::string>& more = {}, const std::vector<std::string>& launcher = {}) const {
    std::vector<std::string> words = launch(2, directory);
    words.insert(words.end(), std::begin(kShape), std::end(kShape));
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.begin() + 1, launcher.begin(), launcher.end());
    if (!faults.empty()) words.insert(words.begin() + 1, {"--inject", faults});
    return run(words);
  }
  std::string log() const { return read_file(dir_ / "log"); }
  bool says(const std::string& text) const { return log().find(text) != std::string::npos; }
  nlohmann::json recorded(const std::string& directory) const {
    return nlohmann::json::parse(read_file(dir_ / directory / "memory.json"));
  }
  void expect_close(const std::string& directory, const std::string& calm) const {
    const std::vector<double> a = losses(directory), b = losses(calm);
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6 * b[i]) << "loss " << i;
  }
  // Expects that no worker is left: the workers' command lines name the directory.
  static void expect_no_process(const std::string& directory) {
    for (const auto& process : test::fs::directory_iterator("/proc")) {
      const std::string line = read_file(process.path() / "cmdline");
      EXPECT_EQ(line.find("run.directory=" + directory), std::string::npos) << process.path();
    }
  }
  // RING_OUT_OF_MEMORIES sets the number of runs, each of which fails at a random allocation, instead of `otherwise`.
  // RING_OUT_OF_MEMORIES_SEED is the seed.
  void expect_the_same_bits_after_any(int otherwise, const std::vector<std::string>& settings) {
    ASSERT_EQ(run_with_faults("", "measures", settings), 0) << log();  // on a GPU: chooses kernels
    ASSERT_EQ(run_with_faults("", "calm", settings), 0) << log();
    std::mt19937 random(static_cast<unsigned>(number_from("RING_OUT_OF_MEMORIES_SEED", 50)));
    for (int i = 0; i < number_from("RING_OUT_OF_MEMORIES", otherwise); ++i) {
      const std::string directory = (dir_ / str("r", i)).string();
      const std::string faults = str(i, ":memory@rank=", random() % 2, ",nth=", 1 + random() % 1100);
      ASSERT_EQ(run_with_faults(faults, directory, settings), 0) << faults << "\n" << log();
      EXPECT_TRUE(says("ran out of memory in ")) << faults << "\n" << log();
      SCOPED_TRACE(recorded(directory).dump());
      EXPECT_EQ(losses(directory), losses("calm")) << faults;
      EXPECT_TRUE(shard(directory) == shard("calm")) << faults;
      EXPECT_EQ(recorded(directory).at("ran_out"), 1) << faults;
      expect_no_process(directory);
    }
  }
};

class DistOutOfMemory : public OutOfMemoryRuns {};

TEST_F(DistOutOfMemory, ARankRestartsAllWithLessMemoryAndTheSameBits) {
  ASSERT_EQ(run_with_faults("", "calm"), 0) << log();
  ASSERT_EQ(run_with_faults("7:memory@rank=1,step=6,nth=40", "r"), 0) << log();
  EXPECT_TRUE(says("launch: rank 1 ran out of memory")) << log();
  EXPECT_TRUE(says(" in step 6 (")) << log();
  EXPECT_TRUE(says("the largest holders are ")) << log();
  EXPECT_TRUE(says("; from now on ")) << log();
  EXPECT_TRUE(says("(restart 1 of this job)")) << log();
  EXPECT_TRUE(says("keeps the smaller sizes") && says("r/memory.json")) << log();
  EXPECT_EQ(losses("r"), losses("calm"));
  EXPECT_TRUE(shard("r") == shard("calm"));
  EXPECT_EQ(recorded("r").at("ran_out"), 1);
  EXPECT_LT(recorded("r").at("peak"), recorded("calm").at("peak"));
  EXPECT_EQ(recorded("r").at("micro_batch"), 2);
  EXPECT_FALSE(test::fs::exists(dir_ / "r/out_of_memory"));
  EXPECT_NE(read_file(dir_ / "r/metrics.jsonl").find("\"group\":\"memory\""), std::string::npos);
  ASSERT_EQ(run({"checkpoint", "inspect", "r"}), 0);
  EXPECT_TRUE(says("\n    \"ran_out\": 1")) << log();
}

TEST_F(DistOutOfMemory, AllRanksAtOnceAreOneEvent) {
  ASSERT_EQ(run_with_faults("7:memory@rank=all,step=3,nth=25", "r"), 0) << log();
  EXPECT_EQ(recorded("r").at("ran_out"), 1);
  EXPECT_TRUE(says("this job: 1 restart, ")) << log();
}

// Each attempt uses less memory than the one before and none takes a step; still the launcher does not give up.
TEST_F(DistOutOfMemory, UsingLessMemoryIsProgress) {
  std::string faults = "7:memory@rank=0,nth=30";
  for (int attempt = 1; attempt < 4; ++attempt) faults += str(";memory@rank=1,nth=30,attempt=", attempt);
  ASSERT_EQ(run_with_faults(faults, "r", {"train.micro_batch=4"}, {"--max-restarts", "1"}), 0) << log();
  EXPECT_EQ(recorded("r").at("ran_out"), 4);
  EXPECT_TRUE(says("this job: 4 restarts, memory ran out 4 times, ")) << log();
}

TEST_F(DistOutOfMemory, FewerSequencesAtATimeAreRecordedAndKept) {
  const std::vector<std::string> settings = {"train.recompute=block", "train.micro_batch=4"};
  ASSERT_EQ(run_with_faults("", "calm", settings), 0) << log();
  ASSERT_EQ(run_with_faults("7:memory@rank=1,step=3,nth=40;kill@rank=0,step=7,attempt=1", "r", settings), 0) << log();
  EXPECT_TRUE(says("2 sequences at a time")) << log();
  EXPECT_TRUE(says("this job: 2 restarts, ")) << log();
  expect_close("r", "calm");
  EXPECT_EQ(recorded("r").at("micro_batch"), 2);
  // A changed setting takes precedence, also if the run has no steps left.
  ASSERT_EQ(run_with_faults("", "r", {"train.recompute=none", "train.micro_batch=4"}), 0) << log();
  EXPECT_TRUE(says("no longer apply: train.recompute")) << log();
  EXPECT_TRUE(says("4 sequences at a time")) << log();
}

TEST_F(DistOutOfMemory, TheRunEndsWithAdviceIfNothingSmallerIsLeft) {
  const std::vector<std::string> settings = {"train.recompute=block", "train.micro_batch=1"};
  EXPECT_EQ(run_with_faults("7:memory@rank=1,step=6", "r", settings, {"--max-restarts", "0"}), kExitError) << log();
  EXPECT_TRUE(says("lower model.context, set train.recompute: auto")) << log();
  EXPECT_EQ(recorded("r").at("ran_out"), 0);
}

TEST_F(DistOutOfMemory, WithoutALauncherTheSameCommandResumes) {
  ASSERT_EQ(run_with_faults("", "calm"), 0) << log();
  const auto both = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"train", "t.yaml", "run.directory=r", "train.steps=8", "run.threads=1"};
    words.insert(words.end(), std::begin(kShape), std::end(kShape));
    words.insert(words.end(), more.begin(), more.end());
    const auto env = [](const char* rank) {
      return Environment{{"WORLD_SIZE", "2"},          {"RANK", rank},
                         {"LOCAL_RANK", rank},         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29547"}};
    };
    const pid_t zero = start(words, env("0"), "log0"), one = start(words, env("1"), "log1");
    return std::pair(wait(zero), wait(one));
  };
  EXPECT_EQ(both({"--inject", "7:memory@rank=1,step=6,nth=40"}), std::pair(kExitPeerLost, kExitOutOfMemory))
      << read_file(dir_ / "log0") << read_file(dir_ / "log1");
  EXPECT_NE(read_file(dir_ / "log1").find("Run the same command again"), std::string::npos);
  EXPECT_EQ(both({}), std::pair(0, 0)) << read_file(dir_ / "log0");
  EXPECT_EQ(losses("r"), losses("calm"));
  EXPECT_EQ(recorded("r").at("ran_out"), 1);
}

TEST_F(DistOutOfMemory, AnyAllocation) { expect_the_same_bits_after_any(2, {}); }

TEST_F(DistOutOfMemory, AValidationIsRepeatedWithFewerSequences) {
  ASSERT_EQ(run_with_faults("", "calm"), 0) << log();
  ASSERT_EQ(run_with_faults("7:memory@rank=1,step=4,phase=validate,nth=5", "r"), 0) << log();
  EXPECT_TRUE(says("launch: rank 1 ran out of memory")) << log();
  EXPECT_TRUE(says("validation after step 4 (")) << log();
  EXPECT_TRUE(says("(restart 1 of this job)")) << log();
  EXPECT_EQ(recorded("r").at("ran_out"), 1);
  EXPECT_EQ(recorded("r").at("validation_micro_batch"), 1);
  EXPECT_EQ(recorded("r").at("micro_batch"), 2);
  expect_close("r", "calm");
  EXPECT_TRUE(shard("r") == shard("calm"));
}

class GpuDistOutOfMemory : public OutOfMemoryRuns {
 protected:
  void SetUp() override {
    if (device_count(Backend::cuda) < 2) GTEST_SKIP() << "fewer than two GPUs";
    OutOfMemoryRuns::SetUp();
  }
  static std::vector<std::string> on_gpus(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"run.device=cuda", "run.tuning=tuning.yaml", "model.width=128"});
    return more;
  }
};

// Sequences are long enough that recomputation saves more than a tenth, beside the GEMM workspace of 64 MiB.
TEST_F(GpuDistOutOfMemory, TwoRanksGoOnWithTheSameBits) {
  expect_the_same_bits_after_any(2, on_gpus({"model.context=1024"}));
}

// Beside the GEMM workspace of 64 MiB, 4 sequences of this model take so little that no smaller number saves a tenth:
// the run goes down to one at once.
TEST_F(GpuDistOutOfMemory, FewerSequencesAtATimeAreRecordedAndAgree) {
  const std::vector<std::string> settings = on_gpus(
      {"train.precision=fp32", "train.recompute=block", "train.activation_offload=false", "train.micro_batch=4"});
  ASSERT_EQ(run_with_faults("", "calm", settings), 0) << log();
  ASSERT_EQ(recorded("calm").at("micro_batch"), 4);
  ASSERT_EQ(run_with_faults("7:memory@rank=1,step=3,nth=40", "r", settings), 0) << log();
  EXPECT_TRUE(says("1 sequence at a time")) << log();
  expect_close("r", "calm");
  EXPECT_EQ(recorded("r").at("micro_batch"), 1);
  EXPECT_GT(recorded("r").at("peak").get<double>(), 0.9 * recorded("calm").at("peak").get<double>());
}

}  // namespace
}  // namespace ring
