// Learned pools as a user meets them: they begin as the means of an earlier run, resume, are evaluated and generate
// text, and a run may cease to have them.
#include "core/check.h"
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

using Overrides = std::vector<std::string>;

class LearnedPoolRuns : public Runs {
 protected:
  // Learned pools also have gates.
  static Overrides pools(const std::string& pooling) {
    return {"train.steps=20",
            "model.context=64",
            "data.validation_batches=0",
            "optimizer.lr=0.01",
            "checkpoint.keep_last=9",
            "model.attention={kind: window, window: 4, pools: [8, 16], pooling: " + pooling +
                (pooling == "learned" ? ", pool_gates: true}" : "}")};
  }
  void forget(const std::string& run, std::initializer_list<const char*> steps) const {
    for (const char* step : steps) fs::remove_all(folder_ / run / "checkpoints" / step);
  }
};

// Before they have learned, pools are exactly the means: the first loss is the same, and later losses differ.
TEST_F(LearnedPoolRuns, LearnStartingFromMeans) {
  trained("means", pools("mean"));
  trained("run", pools("learned"));
  const std::vector<double> means = values("means", "train", "loss"), learned = values("run", "train", "loss");
  ASSERT_EQ(learned.size(), 20u);
  EXPECT_EQ(learned[0], means[0]);
  EXPECT_NE(learned[19], means[19]);
}

TEST_F(LearnedPoolRuns, ResumeBitForBit) {
  trained("whole", pools("learned"), {"optimizer.kind=muon"});
  fs::copy(path("whole"), path("parts"), fs::copy_options::recursive);
  forget("parts", {"step-000000015", "step-000000020"});
  const Finished f = trained("parts", pools("learned"), {"optimizer.kind=muon"});
  EXPECT_NE(f.output.find("resuming from step 10"), std::string::npos) << f.output;
  EXPECT_EQ(losses("parts"), losses("whole"));
}

TEST_F(LearnedPoolRuns, AreEvaluatedAsTheyTrain) {
  trained("run", pools("learned"));
  EXPECT_NEAR(loss_of("run"), values("run", "validation", "loss").back(), 1e-5);
  const Finished text = ring({"generate", path("run"), "--device", "cpu", "--prompt", std::string(20, 'l'),
                              "--temperature", "0", "--max-tokens", "30"});
  EXPECT_EQ(text.code, 0) << text.output;
}

TEST_F(LearnedPoolRuns, StartFromMeansAndBack) {
  trained("means", pools("mean"));
  const Finished there = trained("learned", pools("learned"), {"run.init_from=" + path("means")});
  for (const char* part : {"no learned pools", "(12 tensors)"})
    EXPECT_NE(there.output.find(part), std::string::npos) << there.output;
  trained("again", pools("mean"), {"run.init_from=" + path("means")});
  EXPECT_EQ(values("learned", "train", "loss")[0], values("again", "train", "loss")[0]);
  const Finished back = trained("back", pools("mean"), {"run.init_from=" + path("learned")});
  for (const char* part : {"have learned pools", "(12 tensors)"})
    EXPECT_NE(back.output.find(part), std::string::npos) << back.output;
}

// The step, moments and data of the run continue; learned pools and gates are initialized.
TEST_F(LearnedPoolRuns, ResumeARunOfMeansAndBack) {
  trained("run", pools("mean"));
  const std::vector<double> means = values("run", "train", "loss");
  forget("run", {"step-000000015", "step-000000020"});
  EXPECT_NE(run_process(train("run", pools("learned"))).output.find("pass --allow-changes"), std::string::npos);
  const Finished there = trained("run", pools("learned"), {"--allow-changes"});
  EXPECT_NE(there.output.find("resuming from step 10"), std::string::npos) << there.output;
  for (const char* part : {"no learned pools", "(12 tensors)"})
    EXPECT_NE(there.output.find(part), std::string::npos) << there.output;
  EXPECT_NE(there.output.find("lacks 24 optimizer states"), std::string::npos) << there.output;
  EXPECT_EQ(values("run", "train", "loss")[10], means[10]);
  forget("run", {"step-000000020"});
  const Finished back = trained("run", pools("mean"), {"--allow-changes"});
  EXPECT_NE(back.output.find("resuming from step 15"), std::string::npos) << back.output;
  for (const char* part : {"have learned pools", "(12 tensors)"})
    EXPECT_NE(back.output.find(part), std::string::npos) << back.output;
}

}  // namespace
}  // namespace ring::test
