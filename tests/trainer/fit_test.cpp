#include <gtest/gtest.h>

#include "core/fields.h"
#include "engine/config.h"
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

class FitRuns : public Runs {
 protected:
  Finished fit(const std::string& run, const std::vector<std::string>& more) const {
    std::vector<std::string> words = train(run, {"train.batch_size=8", "model.context=64"});
    std::erase_if(words, [](const std::string& w) { return w.starts_with("train.micro_batch"); });
    words.insert(words.end(), more.begin(), more.end());
    words.emplace_back("--fit");
    return run_process(words);
  }
  TrainConfig settings(const std::string& run) const {
    Config config;
    load_config(config, path(run + "/config.yaml"));
    return config.train;
  }
  std::int64_t micro_batch(const std::string& run) const { return settings(run).micro_batch; }
};

TEST_F(FitRuns, TheMicroBatchFitsAndIsKept) {
  const Finished roomy = fit("roomy", {"train.steps=2", "train.memory_budget=1e9"});
  ASSERT_EQ(roomy.code, 0) << roomy.output;
  EXPECT_NE(roomy.output.find("train.micro_batch: auto is 8"), std::string::npos) << roomy.output;
  EXPECT_EQ(micro_batch("roomy"), 8);
  // The choice made when the run began also holds for a resume with less memory.
  const Finished later = fit("roomy", {"train.steps=4", "train.memory_budget=0.9e9", "--allow-changes"});
  ASSERT_EQ(later.code, 0) << later.output;
  EXPECT_EQ(micro_batch("roomy"), 8);
}

TEST_F(FitRuns, LessMemoryGivesASmallerMicroBatchUntilNoneFits) {
  std::int64_t before = 8;
  bool fewer = false, refused = false;
  for (double budget = 8e6; budget > 1e5 && !refused; budget *= 0.7) {
    const Finished f = fit("short", {"train.steps=2", "--fresh", "train.memory_budget=" + std::to_string(budget)});
    refused = f.code != 0;
    if (refused) {
      EXPECT_NE(f.output.find("--fit"), std::string::npos) << f.output;
      continue;
    }
    EXPECT_LE(micro_batch("short"), before);
    fewer |= micro_batch("short") < 8;
    before = micro_batch("short");
  }
  EXPECT_TRUE(fewer);
  EXPECT_TRUE(refused);
}

TEST_F(FitRuns, AutoInTheFileEqualsTheOption) {
  std::vector<std::string> words = train("word", {"train.batch_size=8", "model.context=64", "train.steps=2"});
  std::erase_if(words, [](const std::string& w) { return w.starts_with("train.micro_batch"); });
  std::ofstream(path("auto.yaml")) << "include: " << words[2] << "\ntrain: {micro_batch: auto}\n";
  words[2] = path("auto.yaml");
  ASSERT_EQ(run_process(words).code, 0);
  EXPECT_EQ(micro_batch("word"), 8);
  words.insert(words.end(), {"train.memory_budget=0.9e9"});
  EXPECT_EQ(run_process(words).code, 0);
  fs::remove(path("word/config.yaml"));  // the checkpoints also store the choice
  words.insert(words.end(), {"train.memory_budget=8e6"});
  EXPECT_EQ(run_process(words).code, 0);
  EXPECT_EQ(micro_batch("word"), 8);
  const Finished nearly = ring({"train", path("auto.yaml"), "train.micro_batch=automatic"});
  EXPECT_NE(nearly.output.find("train.micro_batch"), std::string::npos) << nearly.output;
  EXPECT_EQ(nearly.code, 1);
}

// A run resumes with its own settings and --fit. The settings that it was started with are refused without --fit.
TEST_F(FitRuns, ARunResumesWithItsChoice) {
  ASSERT_EQ(fit("r", {"train.steps=2"}).code, 0);
  const Finished own = ring({"train", path("r"), "train.steps=4", "--allow-changes", "--fit"});
  EXPECT_EQ(own.code, 0) << own.output;
  EXPECT_EQ(micro_batch("r"), 8);
  std::vector<std::string> words = train("r", {"train.batch_size=8", "model.context=64", "train.steps=4"});
  std::erase_if(words, [](const std::string& w) { return w.starts_with("train.micro_batch"); });
  const Finished without = run_process(words);
  EXPECT_EQ(without.code, 1) << without.output;
  EXPECT_NE(without.output.find("--fit or train.micro_batch=auto"), std::string::npos) << without.output;
  EXPECT_EQ(ring({"train", path("r"), "train.micro_batch=4", "--fit"}).code, 1);
}

TEST_F(FitRuns, AGivenMicroBatchIsRefusedWithFit) {
  const Finished f = fit("said", {"train.steps=2", "train.micro_batch=2"});
  EXPECT_EQ(f.code, 1);
  EXPECT_NE(f.output.find("train.micro_batch: 2. Remove it"), std::string::npos) << f.output;
}

// All tokens are computed at once if that fits. Otherwise the run chooses a chunk size at its start, and a resume keeps
// it.
TEST_F(FitRuns, MlpChunksAreChosenIfMemoryIsShortAndAreKept) {
  const std::vector<std::string> wide = {"train.mlp_chunk=auto",  "model.context=2048",  "train.batch_size=4",
                                         "train.micro_batch=4",   "model.mlp_width=256", "train.eval_interval=0",
                                         "checkpoint.interval=1", "train.log_interval=1"};
  const auto chosen = [&](const std::string& run, std::vector<std::string> more) {
    more.insert(more.begin(), wide.begin(), wide.end());
    const Finished f = run_process(train(run, more));
    EXPECT_EQ(f.code, 0) << f.output;
    return settings(run).mlp_chunk;
  };
  EXPECT_EQ(chosen("roomy", {"train.steps=1", "train.memory_budget=1e9"}), 0);
  std::int64_t chunk = 0;
  std::string budget;
  for (double bytes = 1e8; bytes > 1e7 && !chunk; bytes *= 0.85) {
    budget = "train.memory_budget=" + std::to_string(bytes);
    chunk = chosen("short", {"train.steps=1", "--fresh", budget});
  }
  EXPECT_EQ(chunk, 4096);
  EXPECT_EQ(chosen("short", {"train.steps=2", "train.memory_budget=1e9", "--allow-changes"}), chunk);
  const auto record = nlohmann::json::parse(std::ifstream(path("short/memory.json")));
  EXPECT_EQ(record.at("for").at("train.mlp_chunk"), std::to_string(chunk));
  // Setting the chosen number gives the same losses.
  chosen("said", {"train.steps=2", budget, "train.mlp_chunk=" + std::to_string(chunk)});
  EXPECT_EQ(losses("said"), losses("short"));
}

// Sequences are whole if that fits. Otherwise the run chooses the chunks at its start, and a resume keeps them.
TEST_F(FitRuns, SequenceChunksAreChosenIfMemoryIsShortAndAreKept) {
  const std::vector<std::string> longer = {"train.sequence_chunk=auto", "model.context=16384",
                                           "train.batch_size=1",        "train.recompute=full",
                                           "train.eval_interval=0",     "train.log_interval=1",
                                           "checkpoint.interval=1",     "model.attention={kind: window, window: 100}"};
  const auto chosen = [&](const std::string& run, std::vector<std::string> more) {
    more.insert(more.begin(), longer.begin(), longer.end());
    std::vector<std::string> words = train(run, more);
    std::erase_if(words, [](const std::string& w) { return w.starts_with("train.micro_batch"); });
    const Finished f = run_process(words);
    EXPECT_EQ(f.code, 0) << f.output;
    return settings(run).sequence_chunk;
  };
  EXPECT_EQ(chosen("roomy", {"train.steps=1", "train.memory_budget=2e9"}), 0);
  std::int64_t chunk = 0;
  std::string budget;
  for (double bytes = 1e8; bytes > 1e6 && !chunk; bytes *= 0.85) {
    budget = "train.memory_budget=" + std::to_string(bytes);
    chunk = chosen("short", {"train.steps=1", "--fresh", budget});
  }
  EXPECT_TRUE(chunk == 4096 || chunk == 8192) << chunk;
  EXPECT_EQ(chosen("short", {"train.steps=2", "train.memory_budget=2e9", "--allow-changes"}), chunk);
  chosen("said", {"train.steps=2", budget, "train.sequence_chunk=" + std::to_string(chunk)});
  EXPECT_EQ(losses("said"), losses("short"));
}

}  // namespace
}  // namespace ring::test
