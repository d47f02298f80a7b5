// Blocks by importance as a user meets them: in checkpoints, evaluation and generation, with a different context, and
// in runs that begin or cease to have them.
#include <algorithm>

#include "checkpoint/reader.h"
#include "core/check.h"
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

using Json = nlohmann::json;

class ImportanceRuns : public Runs {
 protected:
  // Trains with eight blocks. A block of queries sees three of them, one of which is drawn at random.
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

TEST_F(ImportanceRuns, EvaluateWithTheBlocksThatTheyChose) {
  trained("run");
  const Json saved = tensors("run", "step-000000060");
  for (const char* name : {"importance.blocks.0.averages", "importance.blocks.1.scores"})
    EXPECT_TRUE(saved.contains(name)) << name;
  EXPECT_NEAR(loss_of("run"), validated("run"), 1e-6);
  // Reference: the same weights with the newest blocks, in a run that starts from them and has not chosen any blocks
  // yet.
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

// Distances in blocks of 64 mean nothing for blocks of 128. With this interval, step 1 measures nothing.
TEST_F(ImportanceRuns, BlocksOfADifferentSizeBeginWithoutAverages) {
  trained("run");
  const auto begin = [&](const std::string& name, int block) {
    return run_process(
        train(name, {"model.context=512", "model.positions=rope", "run.init_from=" + path("run"), "train.steps=1",
                     str("model.attention={kind: block_sparse, block: ", block,
                         ", rules: [{pattern: importance, keep: 3, interval: 800, seed: 5}]}")}));
  };
  const auto largest = [&](const std::string& run) {
    const std::string checkpoint = path(run) + "/checkpoints/step-000000001", name = "importance.blocks.0.averages";
    const Manifest manifest = read_manifest(checkpoint);
    const Shape shape = manifest.tensors.at(name).global_shape;
    const Tensor t = read_tensor(checkpoint, manifest, name, {{0, 0}, {shape[0], shape[1]}});
    return *std::max_element(t.data<float>(), t.data<float>() + t.numel());
  };
  const std::string empty = "different block size";
  const Finished same = begin("same", 64), other = begin("other", 128);
  ASSERT_EQ(same.code + other.code, 0) << same.output << other.output;
  EXPECT_EQ(same.output.find(empty), std::string::npos) << same.output;
  for (const std::string& part : {empty, std::string("block importance of 2 layers")})
    EXPECT_NE(other.output.find(part), std::string::npos) << other.output;
  EXPECT_GT(largest("same"), 0);
  const Finished resumed = ring({"train", path("run"), "--allow-changes", "model.attention.block=128"});
  EXPECT_EQ(resumed.code, 1);
  for (const std::string& part : {std::string("model.attention.block: 64 -> 128"), std::string("layer 0 keeps blocks"),
                                  std::string("Set it to 64"), "run.init_from=" + path("run")})
    EXPECT_NE(resumed.output.find(part), std::string::npos) << resumed.output;
  const Finished usual = run_process(
      train("usual",
            {"model.context=512", "model.positions=rope", "run.init_from=" + path("other"), "train.steps=1",
             "model.attention={kind: block_sparse, rules: [{pattern: importance, keep: 3, interval: 800, seed: 5}]}"}));
  ASSERT_EQ(usual.code, 0) << usual.output;
  EXPECT_EQ(usual.output.find(empty), std::string::npos) << "blocks of 128, which is what no number means";
  EXPECT_LT(largest("other"), 0) << "of distances that were not measured";
}

class ChangedToImportance : public Runs {
 protected:
  using Words = std::vector<std::string>;
  static Words with(const std::string& attention) {
    return {"train.steps=20",    "model.context=512",      "model.positions=rope",
            "optimizer.lr=0.01", "checkpoint.keep_last=9", "model.attention=" + attention};
  }
  static Words with_rule(const std::string& rule) {
    return with("{kind: block_sparse, block: 64, rules: [{" + rule + "}]}");
  }
  // Blocks are chosen before steps 12, 16 and 20.
  static Words important() { return with_rule("pattern: importance, keep: 3, interval: 4, explore: 1, seed: 5"); }

  // Copies the run as it was at this step.
  void copy_at(int step, const std::string& run, const std::string& to) const {
    fs::copy(path(run), path(to), fs::copy_options::recursive);
    for (int newer = step + 5; newer <= 20; newer += 5) fs::remove_all(folder_ / to / "checkpoints" / name_of(newer));
  }
  static std::string name_of(int step) { return str("step-0000000", step / 10, step % 10); }
  static bool has_importance(const Json& tensors) {
    return std::ranges::any_of(tensors.items(), [](const auto& t) { return t.key().starts_with("importance."); });
  }

  // The step, the optimizer's moments and the data continue.
  void expect_there_and_back(const Words& before) const {
    trained("run", before);
    for (const char* copy : {"there", "newest"}) copy_at(10, "run", copy);
    EXPECT_NE(run_process(train("there", important())).output.find("pass --allow-changes"), std::string::npos);
    const Finished there = trained("there", important(), {"--allow-changes"});
    for (const char* part : {"resuming from step 10", "has no block importance"})
      EXPECT_NE(there.output.find(part), std::string::npos) << there.output;
    EXPECT_TRUE(has_importance(tensors("there", name_of(20))));
    expect_newest_at_first();
    expect_to_resume();
    copy_at(15, "there", "back");
    const Finished back = trained("back", before, {"--allow-changes"});
    for (const char* part : {"resuming from step 15", "has block importance"})
      EXPECT_NE(back.output.find(part), std::string::npos) << back.output;
    EXPECT_FALSE(has_importance(tensors("back", name_of(20))));
  }
  // Until blocks are chosen, the run keeps the newest blocks.
  void expect_newest_at_first() const {
    trained("newest", with_rule("local: 3"), {"--allow-changes"});
    const std::vector<double> there = values("there", "train", "loss"), newest = values("newest", "train", "loss");
    EXPECT_NEAR(there.at(10), newest.at(10), 1e-6);
    EXPECT_GT(std::abs(there.at(11) - newest.at(11)), 1e-6);
  }
  void expect_to_resume() const {
    copy_at(15, "there", "again");
    const Finished again = trained("again", important());
    EXPECT_NE(again.output.find("resuming from step 15"), std::string::npos) << again.output;
    EXPECT_EQ(again.output.find("importance"), std::string::npos) << again.output;
    EXPECT_EQ(losses("again"), losses("there"));
    EXPECT_EQ(tensors("again", name_of(20)), tensors("there", name_of(20)));
  }
};

TEST_F(ChangedToImportance, ResumesFromDenseAttentionAndBack) { expect_there_and_back(with("{kind: dense}")); }
TEST_F(ChangedToImportance, ResumesFromContentAndBack) {
  expect_there_and_back(with_rule("pattern: content, local: 1, keep: 3"));
}

// The averages of a layer that already had them continue, and those of the other layer begin.
TEST_F(ChangedToImportance, AnotherLayerBeginsWithEmptyAverages) {
  const std::string rule = important().back().substr(std::string("model.attention=").size());
  Words one = with("{kind: dense}");
  one.push_back("model.attention_layers=[{layers: 0, attention: " + rule + "}]");
  trained("run", one);
  copy_at(10, "run", "both");
  const Finished f = trained("both", important(), {"model.attention_layers=[]", "--allow-changes"});
  EXPECT_NE(f.output.find("has no block importance"), std::string::npos) << f.output;
  EXPECT_TRUE(tensors("both", name_of(20)).contains("importance.blocks.1.averages"));
}

}  // namespace
}  // namespace ring::test
