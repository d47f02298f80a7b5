// Islands that train alone (parallel.local_steps) as a user starts them: a killed island, rejected steps of one island,
// and commands that read the checkpoint.
#include "checkpoint/directory.h"
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

class DistIslandRuns : public Runs {
 protected:
  // Two islands of one process each, or of half of `processes`.
  Finished launched(const std::string& run, const std::string& faults = "", std::vector<std::string> more = {},
                    const std::string& processes = "2") const {
    std::vector<std::string> settings = {"parallel.islands=2",   "parallel.local_steps=4", "train.steps=30",
                                         "run.threads=1",        "train.eval_interval=15", "train.log_interval=2",
                                         "checkpoint.interval=0"};
    settings.insert(settings.end(), more.begin(), more.end());
    std::vector<std::string> words = train(run, settings);
    words.erase(words.begin());
    const std::vector<std::string> launch =
        faults.empty() ? std::vector<std::string>{ring_binary(), "launch", "-n", processes, "--"}
                       : std::vector<std::string>{ring_binary(), "launch", "-n", processes, "--inject", faults, "--"};
    words.insert(words.begin(), launch.begin(), launch.end());
    return run_process(words);
  }
};

// The snapshot in memory is taken at step 15, after which no fragment has been combined; the exchange of step 16 is
// delayed until after step 17, in which the process dies.
TEST_F(DistIslandRuns, AKilledIslandContinuesBitIdentically) {
  const std::vector<std::string> settings = {"parallel.outer_bits=2", "parallel.outer_fragments=2",
                                             "parallel.outer_delay=1", "checkpoint.memory_interval=5"};
  const Finished calm = launched("calm", "", settings);
  ASSERT_EQ(calm.code, 0) << calm.output;
  EXPECT_NE(calm.output.find("2 islands of 1 process train alone"), std::string::npos) << calm.output;
  const Finished killed = launched("killed", "7:kill@rank=1,step=17,phase=backward", settings);
  ASSERT_EQ(killed.code, 0) << killed.output;
  EXPECT_NE(killed.output.find("restart"), std::string::npos) << killed.output;
  EXPECT_EQ(losses("killed"), losses("calm"));
  EXPECT_EQ(tensors("killed", "step-000000030"), tensors("calm", "step-000000030"));
  EXPECT_EQ(values("killed", "validation", "loss"), values("calm", "validation", "loss"));
  EXPECT_NEAR(loss_of("calm"), values("calm", "validation", "loss").back(), 1e-4);
}

// Island 1 repeats its steps since the snapshot of step 16, after an exchange, which is complete before that of step 18
// is taken. Later the island of rank 0 does the same, or all islands restart if it has not saved a snapshot in time.
TEST_F(DistIslandRuns, ALostIslandRepeatsItsStepsAlone) {
  const std::vector<std::string> settings = {"parallel.outer_bits=2", "checkpoint.memory_interval=3"};
  ASSERT_EQ(launched("calm", "", settings).code, 0);
  const Finished killed =
      launched("killed", "7:kill@rank=1,step=19,phase=backward;kill@rank=0,step=23,phase=backward,attempt=1", settings);
  ASSERT_EQ(killed.code, 0) << killed.output;
  for (const char* text : {"replacing rank 1; 1 worker keeps running", "replacing rank 0; 1 worker keeps running",
                           "island 1 repeats its steps since step 1"})
    EXPECT_NE(killed.output.find(text), std::string::npos) << text << "\n" << killed.output;
  EXPECT_EQ(losses("killed"), losses("calm")) << killed.output;
  EXPECT_EQ(tensors("killed", "step-000000030"), tensors("calm", "step-000000030"));
  EXPECT_EQ(values("killed", "validation", "loss"), values("calm", "validation", "loss"));
}

// Rank 2 loses its peer inside island 1 and starts again with it, in the same process.
TEST_F(DistIslandRuns, AnIslandOfTwoProcessesRepeatsItsSteps) {
  const std::vector<std::string> settings = {"parallel.zero=1", "checkpoint.memory_interval=1000", "train.steps=10",
                                             "train.batch_size=8", "train.eval_interval=0"};
  ASSERT_EQ(launched("calm", "", settings, "4").code, 0);
  const Finished killed = launched("killed", "7:kill@rank=3,step=7,phase=forward", settings, "4");
  ASSERT_EQ(killed.code, 0) << killed.output;
  EXPECT_NE(killed.output.find("replacing rank 3; 3 workers keep running"), std::string::npos) << killed.output;
  EXPECT_EQ(losses("killed"), losses("calm")) << killed.output;
  EXPECT_EQ(tensors("killed", "step-000000010"), tensors("calm", "step-000000010"));
}

// Without snapshots, island 1 starts again from the outer weights, which it had at step 16, and reads the samples since
// then again. The other island does not lose steps.
TEST_F(DistIslandRuns, ALostIslandStartsFromTheOuterWeights) {
  ASSERT_EQ(launched("calm").code, 0);
  const Finished killed = launched("killed", "7:kill@rank=1,step=18,phase=backward");
  ASSERT_EQ(killed.code, 0) << killed.output;
  EXPECT_NE(killed.output.find("island 1 starts again from the outer weights of step 16"), std::string::npos)
      << killed.output;
  const std::vector<double> calm = values("calm", "train", "loss"), after = values("killed", "train", "loss");
  ASSERT_EQ(after.size(), calm.size()) << killed.output;
  for (std::size_t i = 0; i < calm.size(); ++i)  // a record every two steps
    EXPECT_NEAR(after[i], calm[i], i < 8 ? 0 : 0.03) << "step " << 2 * (i + 1);
}

// With this limit, and weights that hardly change, about half of an island's steps are outliers once there is a history
// of 32 steps. They differ between islands, which yet stay at the same steps, and the run ends after the last one.
TEST_F(DistIslandRuns, AnIslandPassesOverABadStepAlone) {
  const Finished f =
      launched("run", "",
               {"train.steps=60", "optimizer.lr=1e-9", "train.on_bad_step=skip", "train.spike_deviations=0.05",
                "train.max_bad_steps=1000", "checkpoint.memory_interval=0"});
  ASSERT_EQ(f.code, 0) << f.output;
  EXPECT_NE(f.output.find("of island 0: loss"), std::string::npos) << f.output;
  EXPECT_NE(f.output.find("of island 1: loss"), std::string::npos) << f.output;
  EXPECT_EQ(list_checkpoints(path("run/checkpoints")).back().step, 60);
}

}  // namespace
}  // namespace ring::test
