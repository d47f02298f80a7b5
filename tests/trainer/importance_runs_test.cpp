// Blocks by importance as a user meets them: in checkpoints, in evaluation, in generation, and with another context.
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

using Json = nlohmann::json;

class ImportanceRuns : public Runs {
 protected:
  // Eight blocks, of which a block sees three: one of them drawn at random.
  Finished trained(const std::string& run, std::vector<std::string> more = {}) const {
    for (const char* o :
         {"train.steps=60", "model.context=512", "train.micro_batch=4", "optimizer.lr=0.01", "model.positions=rope",
          "model.attention={kind: block_sparse, block: 64, rules: [{pattern: importance, keep: 3, "
          "interval: 4, explore: 1, seed: 5}]}"})
      more.insert(more.begin(), o);
    const Finished f = run_process(train(run, more));
    EXPECT_EQ(f.code, 0) << f.output;
    return f;
  }
  double loss_of(const std::string& run, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"eval", path(run), "--device", "cpu", "--threads", "2", "--json"};
    all.insert(all.end(), more.begin(), more.end());
    const Finished f = ring(all);
    EXPECT_EQ(f.code, 0) << f.output;
    return f.code == 0 ? Json::parse(f.output).at("loss").get<double>() : 0;
  }
  double validated(const std::string& run) const {
    double loss = 0;
    std::ifstream file(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (const Json json = Json::parse(line); json.at("group") == "validation") loss = json.at("loss");
    return loss;
  }
};

TEST_F(ImportanceRuns, AreEvaluatedWithTheBlocksThatTheyChose) {
  trained("run");
  const Json saved = tensors("run", "step-000000060");
  for (const char* name : {"importance.blocks.0.averages", "importance.blocks.1.scores"})
    EXPECT_TRUE(saved.contains(name)) << name;
  EXPECT_NEAR(loss_of("run"), validated("run"), 1e-6);
  // The same weights over the newest blocks: those of a run that begins with them and has chosen nothing yet.
  const Finished f =
      run_process(train("newest", {"model.context=512", "model.positions=rope", "run.init_from=" + path("run"),
                                   "train.steps=1", "optimizer.lr=1e-12", "schedule.kind=constant",
                                   "model.attention={kind: block_sparse, block: 64, rules: [{local: 3}]}"}));
  ASSERT_EQ(f.code, 0) << f.output;
  EXPECT_GT(std::abs(loss_of("newest") - loss_of("run")), 1e-4);
  const Finished text = ring(
      {"generate", path("run"), "--device", "cpu", "--prompt", "line", "--temperature", "0", "--max-tokens", "200"});
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_GT(loss_of("run", {"--context", "1024"}), 0);
}

}  // namespace
}  // namespace ring::test
