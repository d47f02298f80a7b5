// Islands that train alone (parallel.local_steps) as a user starts them: a killed island, rejected steps of one island,
// and commands that read the checkpoint.
#include "checkpoint/directory.h"
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

class DistIslandRuns : public Runs {
 protected:
  // Two islands of one process each.
  Finished launched(const std::string& run, const std::string& faults = "", std::vector<std::string> more = {}) const {
    std::vector<std::string> settings = {"parallel.islands=2",   "parallel.local_steps=4", "train.steps=30",
                                         "run.threads=1",        "train.eval_interval=15", "train.log_interval=2",
                                         "checkpoint.interval=0"};
    settings.insert(settings.end(), more.begin(), more.end());
    std::vector<std::string> words = train(run, settings);
    words.erase(words.begin());
    const std::vector<std::string> launch =
        faults.empty() ? std::vector<std::string>{ring_binary(), "launch", "-n", "2", "--"}
                       : std::vector<std::string>{ring_binary(), "launch", "-n", "2", "--inject", faults, "--"};
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
