// Blocks that an indexer selects, as a user meets them: records, resumes, evaluation, generation, and runs that
// continue with or without an indexer.
#include "core/check.h"
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

using Overrides = std::vector<std::string>;

class LearnedRuns : public Runs {
 protected:
  // 20 steps with 5 blocks, of which the first 10 warm up.
  static Overrides learned(const std::string& more = "") {
    return {"train.steps=20", "model.context=320", "data.validation_batches=2",
            "model.attention={kind: block_sparse, block: 64, rules: [{pattern: learned, local: 1, keep: 3}], "
            "index_heads: 2, index_head_dim: 8, index_warmup_steps: 10" +
                more + "}"};
  }
  static Overrides dense() { return {"train.steps=20", "model.context=320", "data.validation_batches=2"}; }
};

TEST_F(LearnedRuns, RecordALossThatFalls) {
  trained("run", learned(), {"optimizer.lr=0.01"});
  const std::vector<double> losses = values("run", "train", "index_loss");
  ASSERT_EQ(losses.size(), 20u);
  for (const double loss : losses) EXPECT_GT(loss, 0);
  trained("still", learned(", index_loss: 0"), {"optimizer.lr=0.01", "optimizer.weight_decay=0"});
  EXPECT_LT(losses[9], values("still", "train", "index_loss")[9]);  // the last step of the warm-up
  trained("dense", dense());
  EXPECT_TRUE(values("dense", "train", "index_loss").empty());
}

TEST_F(LearnedRuns, ResumeAcrossTheEndOfTheWarmUp) {
  trained("whole", learned(), {"checkpoint.keep_last=9"});
  for (const int step : {5, 10}) {
    const std::string parts = str("from-", step);
    fs::copy(path("whole"), path(parts), fs::copy_options::recursive);
    for (int newer = step + 5; newer <= 20; newer += 5)
      fs::remove_all(folder_ / parts / "checkpoints" / str("step-0000000", newer / 10, newer % 10));
    const Finished f = trained(parts, learned(), {"checkpoint.keep_last=9"});
    EXPECT_NE(f.output.find(str("resuming from step ", step)), std::string::npos) << f.output;
    EXPECT_EQ(losses(parts), losses("whole"));
    EXPECT_EQ(values(parts, "train", "index_loss"), values("whole", "train", "index_loss"));
  }
}

// The checkpoint stores how far the warm-up has progressed.
TEST_F(LearnedRuns, AreEvaluatedAsTheyTrain) {
  trained("run", learned(), {"model.biases=all"});
  trained("warm", learned(", index_loss: 2"), {"model.attention.index_warmup_steps=30"});
  trained("far", learned(", index_distances: 3"), {"optimizer.lr=0.01"});
  for (const char* run : {"run", "warm", "far"})
    EXPECT_NEAR(loss_of(run), values(run, "validation", "loss").back(), 1e-5);
  for (const char* run : {"run", "far"}) {
    const Finished text = ring({"generate", path(run), "--device", "cpu", "--prompt", std::string(100, 'l'),
                                "--temperature", "0", "--max-tokens", "120"});
    EXPECT_EQ(text.code, 0) << text.output;
  }
  const Finished exported = ring({"export", path("run"), "--format", "hf", "--output", path("hf")});
  EXPECT_NE(exported.code, 0);
  EXPECT_NE(exported.output.find("kind: block_sparse cannot be exported"), std::string::npos) << exported.output;
}

TEST_F(LearnedRuns, StartFromADenseModelAndBack) {
  trained("dense", dense());
  const Finished there = trained("learned", learned(), {"run.init_from=" + path("dense")});
  EXPECT_NE(there.output.find("lack 6 tensors of indexers"), std::string::npos) << there.output;
  EXPECT_LT(values("learned", "train", "loss")[0], values("dense", "train", "loss")[5]);
  const Finished back = trained("back", dense(), {"run.init_from=" + path("learned")});
  EXPECT_NE(back.output.find("have 6 tensors of indexers"), std::string::npos) << back.output;
  EXPECT_LT(values("back", "train", "loss")[0], values("dense", "train", "loss")[5]);
}

// A run whose indexers have no distance biases gets them, initialized to 0. A run that starts from its weights may omit
// them, or also get them.
TEST_F(LearnedRuns, AddAndRemoveDistanceBiases) {
  trained("run", learned(), {"checkpoint.keep_last=9"});
  const std::vector<double> whole = values("run", "train", "loss");
  for (const char* step : {"step-000000015", "step-000000020"}) fs::remove_all(folder_ / "run" / "checkpoints" / step);
  const Finished refused = run_process(train("run", learned(", index_distances: 8")));
  EXPECT_NE(refused.output.find("model.attention.index_distances: 0 -> 8"), std::string::npos) << refused.output;
  EXPECT_NE(refused.output.find("pass --allow-changes"), std::string::npos) << refused.output;
  const Finished there = trained("run", learned(", index_distances: 8"), {"--allow-changes"});
  EXPECT_NE(there.output.find("lack 2 tensors of indexers"), std::string::npos) << there.output;
  EXPECT_NE(there.output.find("lacks 4 optimizer states"), std::string::npos) << there.output;
  EXPECT_EQ(values("run", "train", "loss")[10], whole[10]);
  const Finished other = trained("other", learned(), {"run.init_from=" + path("run")});
  EXPECT_NE(other.output.find("have 2 tensors of indexers"), std::string::npos) << other.output;
  const Finished another = trained("another", learned(", index_distances: 8"), {"run.init_from=" + path("other")});
  EXPECT_NE(another.output.find("lack 2 tensors of indexers"), std::string::npos) << another.output;
}

// The step, moments and data of the run continue with different attention; indexers and their moments are initialized.
TEST_F(LearnedRuns, ResumeADenseRunAndBack) {
  trained("run", dense(), {"checkpoint.keep_last=9"});
  const std::vector<double> whole = values("run", "train", "loss");
  const auto forget = [&](const char* step) { fs::remove_all(folder_ / "run" / "checkpoints" / step); };
  const auto go_on = [&](Overrides words, const Overrides& more) {
    words.insert(words.end(), more.begin(), more.end());
    return run_process(train("run", words));
  };
  for (const char* step : {"step-000000015", "step-000000020"}) forget(step);
  EXPECT_NE(go_on(learned(), {}).output.find("pass --allow-changes"), std::string::npos);
  const Finished there = go_on(learned(), {"model.attention.index_warmup_steps=15", "--allow-changes"});
  ASSERT_EQ(there.code, 0) << there.output;
  EXPECT_NE(there.output.find("resuming from step 10"), std::string::npos) << there.output;
  EXPECT_NE(there.output.find("lack 6 tensors of indexers"), std::string::npos) << there.output;
  EXPECT_NE(there.output.find("more than the 10 steps"), std::string::npos) << there.output;
  EXPECT_NE(there.output.find("lacks 12 optimizer states"), std::string::npos) << there.output;
  EXPECT_EQ(values("run", "train", "index_loss").size(), 10u);
  EXPECT_NEAR(values("run", "train", "loss")[10], whole[10], 1e-5);  // at first all blocks are kept
  forget("step-000000020");
  const Finished back = go_on(dense(), {"--allow-changes"});
  ASSERT_EQ(back.code, 0) << back.output;
  EXPECT_NE(back.output.find("resuming from step 15"), std::string::npos) << back.output;
  EXPECT_NE(back.output.find("have 6 tensors of indexers"), std::string::npos) << back.output;
  EXPECT_NEAR(values("run", "train", "loss")[15], whole[15], 1e-2);
}

}  // namespace
}  // namespace ring::test
