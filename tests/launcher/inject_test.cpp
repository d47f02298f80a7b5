// --inject with the program: the faults, the messages about them, and that no fault occurs by accident.

#include <gtest/gtest.h>

#include <csignal>

#include "core/check.h"
#include "core/devices.h"
#include "core/exit_code.h"
#include "tests/launcher/training.h"

namespace ring {
namespace {

using test::read_file;

class DistTrainingFaults : public test::TrainingRuns {
 protected:
  int run_with_faults(const std::string& faults, const std::string& directory, int processes = 2,
                      const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = launch(processes, directory);
    words.insert(words.begin() + 1, {"--inject", faults});
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  bool says(const std::string& text) const { return log().find(text) != std::string::npos; }
  nlohmann::json job(const std::string& directory) const { return records(directory, "job").back(); }
  std::string log() const { return read_file(dir_ / "log"); }
};

class GpuTrainingFaults : public DistTrainingFaults {
 protected:
  void SetUp() override {
    if (device_count(Backend::cuda) < 1) GTEST_SKIP() << "no GPU";
    DistTrainingFaults::SetUp();
  }
};

// A kernel on the device really fails, and its name comes from the launch log.
TEST_F(GpuTrainingFaults, AFailedKernelIsNamedAndTheRunResumes) {
  const std::vector<std::string> gpu = {"run.device=cuda", "run.tuning=tuning.yaml"};
  EXPECT_EQ(run_with_faults("7:device@step=6", "r", 1, gpu), 0) << log();
  EXPECT_TRUE(says("(cudaErrorLaunchFailure)")) << log();
  EXPECT_TRUE(says("fail_on_purpose")) << log();
  EXPECT_TRUE(says(str("exited with code ", kExitDeviceFailure))) << log();
  EXPECT_TRUE(says("resuming from step 4 ")) << log();
  EXPECT_TRUE(says("this job: 1 restart, ")) << log();
}

TEST_F(DistTrainingFaults, KilledRanksContinueWithTheSameLosses) {
  ASSERT_EQ(run(launch(2, "calm")), 0) << log();
  const std::string faults = "7:kill@rank=1,step=7,phase=backward;kill@phase=load,attempt=1";
  EXPECT_EQ(run_with_faults(faults, "r", 2, {"checkpoint.mode=blocking"}), 0) << log();
  EXPECT_TRUE(says("as requested: " + faults)) << log();
  EXPECT_TRUE(says("kill@rank=1,step=7,phase=backward: killing rank 1")) << log();
  EXPECT_TRUE(says("phase backward of step 7")) << log();
  EXPECT_TRUE(says("phase load of step 0")) << log();
  EXPECT_TRUE(says("this job: 2 restarts, ")) << log();
  EXPECT_GE(job("r").at("steps_again"), 1) << "step 5, of which both had heard";
  EXPECT_LE(job("r").at("steps_again"), 2);
  EXPECT_EQ(losses("r"), losses("calm"));
  EXPECT_TRUE(shard("r") == shard("calm"));
}

TEST_F(DistTrainingFaults, AFailedDeviceRestartsAllWorkers) {
  ASSERT_EQ(run(launch(2, "calm")), 0) << log();
  EXPECT_EQ(run_with_faults("7:device@rank=1,step=7,phase=backward;device@rank=0,phase=load,attempt=1", "r"), 0)
      << log();
  EXPECT_TRUE(says("device@rank=1,step=7,phase=backward: failing the device of rank 1")) << log();
  EXPECT_TRUE(says("phase backward of step 7")) << log();
  EXPECT_TRUE(says(str("exited with code ", kExitDeviceFailure))) << log();
  EXPECT_TRUE(says("this job: 2 restarts, ")) << log();
  EXPECT_EQ(losses("r"), losses("calm"));
  EXPECT_TRUE(shard("r") == shard("calm"));
}

TEST_F(DistTrainingFaults, AFailedDeviceWithoutALauncherHasItsOwnExitCode) {
  EXPECT_EQ(run({"train", "t.yaml", "run.directory=r", "--inject", "7:device@step=1"}), kExitDeviceFailure) << log();
  EXPECT_EQ(run({"train", "t.yaml", "run.directory=r"}), 0) << log();
}

// The seed decides which rank a random fault hits, and when.
TEST_F(DistTrainingFaults, TheSameSeedHitsTheSameRankAndStep) {
  const auto struck = [&](const std::string& seed, const std::string& directory) {
    EXPECT_EQ(run_with_faults(seed + ":kill@probability=0.2,attempt=0", directory), 0) << log();
    const std::size_t at = log().find("killing rank ");
    return at == std::string::npos ? "nobody" : log().substr(at, log().find('\n', at) - at);
  };
  const std::string first = struck("3", "a");
  EXPECT_EQ(first, struck("3", "b"));
  bool differs = false;
  for (const char* seed : {"4", "5", "6"}) differs |= struck(seed, std::string("s") + seed) != first;
  EXPECT_TRUE(differs);
}

TEST_F(DistTrainingFaults, AFailedCallIsNamedAndTheRunContinues) {
  EXPECT_EQ(run_with_faults("1:io@rank=1,phase=sync,call=fsync,error=EIO", "r"), 0) << log();
  EXPECT_TRUE(says("io@rank=1,phase=sync,call=fsync,error=EIO: at a call")) << log();
  EXPECT_TRUE(says("step 4 was not saved")) << log();
  EXPECT_TRUE(says("Input/output error")) << log();
  EXPECT_TRUE(says("this job: 0 restarts, 1 failed save, ")) << log();
  EXPECT_EQ(job("r").at("failed_saves"), 1);
  EXPECT_EQ(run_with_faults("1:io@phase=write,rank=all,call=write,error=short,times=9", "short"), 0) << log();
  EXPECT_FALSE(says("was not saved")) << log();
  EXPECT_EQ(run({"checkpoint", "verify", "short"}), 0) << log();
}

TEST_F(DistTrainingFaults, SlownessGivesTheSameLosses) {
  ASSERT_EQ(run(launch(2, "calm")), 0) << log();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(run_with_faults("1:slow@rank=1,wait=100ms,phase=forward,step=2,until=5", "r", 2, {"train.micro_batch=4"}),
            0)
      << log();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(400)) << "four steps wait";
  EXPECT_EQ(run_with_faults("1:slow@rank=1,factor=1.5", "s"), 0) << log();
  EXPECT_EQ(losses("s"), losses("calm"));
}

// Both ranks add the damaged message of one rank.
TEST_F(DistTrainingFaults, AChangedMessageChangesTheLosses) {
  ASSERT_EQ(run(launch(2, "calm")), 0) << log();
  EXPECT_EQ(run_with_faults("2:corrupt@rank=1,step=2,call=all_reduce,side=sent,bytes=1000,times=1000000", "r", 2,
                            {"train.on_bad_step=skip", "train.max_bad_steps=1000"}),
            0)
      << log();
  EXPECT_TRUE(says("side=sent,bytes=1000,times=1000000: byte ")) << log();
  EXPECT_NE(losses("r"), losses("calm"));
}

// A damaged message has nothing to do with the step's weights and samples: the result of the second computation counts.
TEST_F(DistTrainingFaults, AStepThatIsWrongOnceIsRecomputed) {
  const std::vector<std::string> more = {"train.spike_deviations=20", "train.steps=50", "checkpoint.interval=25",
                                         "train.eval_interval=25"};
  std::vector<std::string> calm = launch(2, "calm");
  calm.insert(calm.end(), more.begin(), more.end());
  ASSERT_EQ(run(calm), 0) << log();
  EXPECT_EQ(run_with_faults("6:corrupt@rank=1,step=45,call=all_reduce,side=sent,bytes=1000", "r", 2, more), 0) << log();
  EXPECT_TRUE(says("step 45 gave different results")) << log();
  EXPECT_TRUE(says("memory is faulty")) << log();
  const std::vector<nlohmann::json> bad = records("r", "bad_step");
  ASSERT_EQ(bad.size(), 1u) << log();
  EXPECT_EQ(bad[0].at("step"), 45);
  EXPECT_EQ(bad[0].at("steps_back"), 0);
  EXPECT_FALSE(bad[0].contains("first_sample")) << "nothing was left out";
  for (const auto& step : records("calm", "train"))
    if (step.at("step") == 45) {
      EXPECT_EQ(bad[0].at("second_loss"), step.at("loss"));
      EXPECT_EQ(bad[0].at("second_grad_norm"), step.at("grad_norm"));
      EXPECT_NE(bad[0].at("grad_norm"), step.at("grad_norm"));
    }
  EXPECT_EQ(losses("r"), losses("calm"));
  EXPECT_TRUE(shard("r") == shard("calm"));
  EXPECT_TRUE(says("this job: 0 restarts, 1 bad step, 1 step computed again, ")) << log();
  EXPECT_EQ(job("r").at("bad_steps"), 1);
}

// Messages for decisions are checked on arrival, so that all ranks take the same decision.
TEST_F(DistTrainingFaults, ADamagedDecisionIsNamedAndTheStepRepeated) {
  ASSERT_EQ(run(launch(2, "calm")), 0) << log();
  EXPECT_EQ(run_with_faults("2:corrupt@rank=1,step=3,call=all_gather,side=received", "r"), 0) << log();
  EXPECT_TRUE(says("arrived damaged")) << log();
  EXPECT_TRUE(says("starting all workers again")) << log();
  EXPECT_EQ(losses("r"), losses("calm"));
}

TEST_F(DistTrainingFaults, MistakesAreRefusedAtOnce) {
  EXPECT_EQ(run_with_faults("7:kill@phase=forwards", "r"), kExitError);
  EXPECT_TRUE(says("--inject: character 14: 'forwards'") && says("load, data, ")) << log();
  EXPECT_FALSE(says("launch: all")) << "before any worker: " << log();
  EXPECT_EQ(run_with_faults("7:kill@rank=2", "r"), kExitError);
  EXPECT_TRUE(says("--inject: kill@rank=2: ") && says("no rank 2 among 2")) << log();
  EXPECT_EQ(run({"train", "t.yaml", "--inject", "7:kill@agent=0"}), kExitError);
  EXPECT_TRUE(says("has no agent") && says("ringmaster launch")) << log();
  EXPECT_EQ(run({"launch", "--inject", "7:kill", "-n", "2", "--", "bench", "step", "t.yaml"}), kExitError);
  EXPECT_TRUE(says("launch: --inject") && says("got bench")) << log();
  EXPECT_FALSE(test::fs::exists(dir_ / "r"));
}

TEST_F(DistTrainingFaults, NoEnvironmentVariableInjectsFaults) {
  EXPECT_EQ(wait(start(launch(2, "r", "train.steps=2"), {{"PET_INJECT", "7:kill"}, {"RINGMASTER_INJECT", "7:kill"}})),
            0);
  EXPECT_FALSE(says("inject")) << log();
}

TEST_F(DistTrainingFaults, FaultsHitAProcessWithoutALauncher) {
  EXPECT_EQ(run({"train", "t.yaml", "run.directory=r", "--inject", "7:kill@step=3"}), -SIGKILL) << log();
  EXPECT_TRUE(says("killing rank 0") && says("phase data of step 3")) << log();
}

TEST_F(DistTrainingFaults, FaultsThatNeverStruckAreNamed) {
  const std::string faults =
      "7:kill@rank=0,step=900;slow@rank=0,step=2,wait=1ms;memory@nth=100000000;io@probability=0.0000001,error=EIO;kill@"
      "attempt=2";
  EXPECT_EQ(run({"train", "t.yaml", "run.directory=r", "train.steps=3", "--inject", faults}), 0) << log();
  EXPECT_TRUE(says("kill@rank=0,step=900: was never triggered") && says("last step was 3\n")) << log();
  EXPECT_TRUE(says("memory@nth=100000000: was never triggered") && says("made only ")) << log();
  EXPECT_TRUE(says("kill@attempt=2: was never triggered") && says("in attempt 0\n")) << log();
  EXPECT_FALSE(says("wait=1ms: was never triggered")) << log();
  EXPECT_FALSE(says("error=EIO: was never triggered")) << "it was left to chance";
}

}  // namespace
}  // namespace ring
