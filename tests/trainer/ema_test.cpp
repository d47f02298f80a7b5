// Averaged weights and watched steps as a user meets them: settings, records, checkpoints, and commands that use the
// average.
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

using Json = nlohmann::json;

class EmaRuns : public Runs {
 protected:
  std::vector<Json> group(const std::string& run, const std::string& name) const {
    std::vector<Json> out;
    std::ifstream file(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (const Json json = Json::parse(line); json.at("group") == name) out.push_back(json);
    return out;
  }
  Finished trained(const std::string& run, std::vector<std::string> more) const {
    more.insert(more.begin(), "train.steps=40");
    const Finished f = run_process(train(run, more));
    EXPECT_EQ(f.code, 0) << f.output;
    return f;
  }
  // Returns the hashes of a checkpoint's tensors whose names begin with the prefix, by the rest of their names.
  std::map<std::string, std::string> hashes(const std::string& run, const std::string& prefix) const {
    std::map<std::string, std::string> out;
    const Json all = tensors(run, "step-000000040");
    for (const auto& [name, tensor] : all.items())
      if (name.starts_with(prefix)) out[name.substr(prefix.size())] = tensor.at("slices").at(0).at("xxh3");
    return out;
  }
  double loss_of(const std::string& run, const std::string& weights) const {
    const Finished f = ring({"eval", path(run), "--device", "cpu", "--threads", "2", "--json", "--weights", weights});
    EXPECT_EQ(f.code, 0) << f.output;
    return Json::parse(f.output).at("loss");
  }
};

TEST_F(EmaRuns, TheAverageIsSavedValidatedAndUsedOnRequest) {
  trained("plain", {});
  trained("run", {"train.ema=0.9"});
  EXPECT_EQ(losses("run"), losses("plain"));
  EXPECT_EQ(hashes("run", "model."), hashes("plain", "model."));
  EXPECT_TRUE(hashes("plain", "ema.").empty());
  EXPECT_EQ(hashes("run", "ema.").size(), hashes("run", "model.").size());
  EXPECT_NE(hashes("run", "ema."), hashes("run", "model."));

  const std::vector<Json> validations = group("run", "validation");
  ASSERT_EQ(validations.size(), 2u);
  for (const Json& v : validations) EXPECT_NE(v.at("loss"), v.at("ema_loss"));
  EXPECT_FALSE(group("plain", "validation").at(0).contains("ema_loss"));
  const double loss = validations[1].at("loss"), average = validations[1].at("ema_loss");
  EXPECT_NEAR(loss_of("run", "latest"), loss, 1e-5);
  EXPECT_NEAR(loss_of("run", "ema"), average, 1e-5);

  const auto text = [&](const std::string& weights) {
    return ring({"generate", path("run"), "--device", "cpu", "--prompt", "line", "--temperature", "0", "--max-tokens",
                 "40", "--weights", weights});
  };
  EXPECT_EQ(text("ema").code, 0) << text("ema").output;
  EXPECT_NE(text("both").code, 0);
}

TEST_F(EmaRuns, ExportsHoldTheAverage) {
  trained("run", {"train.ema=0.9", "model.biases=all"});
  const auto exported = [&](const std::string& weights, const std::string& format, const std::string& to) {
    const Finished f = ring({"export", path("run"), "--format", format, "--output", path(to), "--weights", weights});
    EXPECT_EQ(f.code, 0) << f.output;
  };
  exported("latest", "hf", "latest");
  exported("ema", "hf", "average");
  const Finished imported = ring({"import", path("average"), "--output", path("imported")});
  ASSERT_EQ(imported.code, 0) << imported.output;
  const Finished f = ring({"eval", path("imported"), "--data", path("a.h5"), "--device", "cpu", "--json"});
  ASSERT_EQ(f.code, 0) << f.output;
  EXPECT_NEAR(Json::parse(f.output).at("loss").get<double>(), group("run", "validation").back().at("ema_loss"), 1e-5);
  const auto bytes = [&](const std::string& folder) {
    std::ifstream file(path(folder + "/model.safetensors"), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(bytes("latest").size(), bytes("average").size());
  EXPECT_NE(bytes("latest"), bytes("average"));
}

TEST_F(EmaRuns, AResumedRunEqualsAnUninterruptedRun) {
  const std::vector<std::string> settings = {"train.ema=0.9", "train.diagnostics_interval=7", "schedule.kind=constant"};
  trained("straight", settings);
  std::vector<std::string> half = settings, rest = settings;
  half.push_back("train.steps=23");
  rest.push_back("--allow-changes");
  ASSERT_EQ(run_process(train("half", half)).code, 0);
  trained("half", rest);
  EXPECT_EQ(hashes("half", ""), hashes("straight", ""));
  EXPECT_EQ(losses("half"), losses("straight"));
  EXPECT_EQ(group("half", "update_ratio").size(), 5u);
}

TEST_F(EmaRuns, TheAverageMayBeginAndEndInAResumedRun) {
  ASSERT_EQ(run_process(train("run", {"train.steps=20", "schedule.kind=constant"})).code, 0);
  const Finished on =
      run_process(train("run", {"train.steps=30", "schedule.kind=constant", "train.ema=0.9", "--allow-changes"}));
  ASSERT_EQ(on.code, 0) << on.output;
  EXPECT_NE(on.output.find("starts from these weights"), std::string::npos) << on.output;
  const Finished off = trained("run", {"schedule.kind=constant", "--allow-changes"});
  EXPECT_NE(off.output.find("average of the weights is not"), std::string::npos) << off.output;
  EXPECT_TRUE(hashes("run", "ema.").empty());
  for (const char* command : {"eval", "generate", "export", "serve"}) {
    std::vector<std::string> arguments = {command, path("run"), "--weights", "ema"};
    if (std::string(command) == "export") arguments.insert(arguments.end(), {"--output", path("out")});
    const Finished none = ring(arguments);
    EXPECT_EQ(none.code, 1) << command;
    for (const char* part : {"has no average", "Train with train.ema"})
      EXPECT_NE(none.output.find(part), std::string::npos) << command << ": " << none.output;
  }
}

TEST_F(EmaRuns, WeightsThatCannotBeAveragedAreRefused) {
  const auto refused = [&](const std::vector<std::string>& settings, const std::string& why) {
    const Finished f = run_process(train("run", settings));
    EXPECT_EQ(f.code, 1);
    EXPECT_NE(f.output.find(why), std::string::npos) << f.output;
    EXPECT_FALSE(fs::exists(folder_ / "run"));
  };
  refused({"train.ema=0.9", "optimizer.offload=all"}, "train.ema: requires the weights");
  refused({"train.ema=0.9", "optimizer.offload=weights"}, "train.ema: requires the weights");
  refused({"train.ema=0.9", "optimizer.master=bf16"}, "train.ema: requires optimizer.master: fp32");
  refused({"train.ema=1"}, "train.ema");
  refused({"train.diagnostics_interval=3", "optimizer.offload=all"},
          "train.diagnostics_interval: requires the weights");
}

TEST_F(EmaRuns, WatchedStepsAreRecorded) {
  trained("plain", {});
  trained("run", {"train.diagnostics_interval=10"});
  EXPECT_EQ(losses("run"), losses("plain"));
  EXPECT_EQ(hashes("run", ""), hashes("plain", ""));
  for (const char* name : {"update_ratio", "attention_entropy", "attention_entropy_min"}) {
    const std::vector<Json> records = group("run", name);
    ASSERT_EQ(records.size(), 4u) << name;
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(records[i].at("step"), 10 * (i + 1));
      for (const char* block : {"blocks.0", "blocks.1"}) EXPECT_GT(records[i].at(block).get<double>(), 0) << name;
    }
  }
  EXPECT_GT(group("run", "update_ratio").at(0).at("embedding").get<double>(), 0);
  EXPECT_FALSE(group("run", "attention_entropy").at(0).contains("embedding"));
}

// Records of selected blocks come only from layers that select blocks.
TEST_F(EmaRuns, WatchedBlocksAreRecorded) {
  trained("run", {"train.diagnostics_interval=20", "model.context=256", "train.micro_batch=4",
                  "model.attention_layers=[{layers: '1', attention: {kind: block_sparse, block: 64, rules: [{pattern: "
                  "content, keep: 2}]}}]"});
  for (const char* name : {"attention_density", "attention_recall"}) {
    const std::vector<Json> records = group("run", name);
    ASSERT_EQ(records.size(), 2u) << name;
    for (const Json& r : records) {
      EXPECT_FALSE(r.contains("blocks.0")) << name;
      EXPECT_GT(r.at("blocks.1").get<double>(), 0.3) << name;
      EXPECT_LT(r.at("blocks.1").get<double>(), 1) << name;
    }
  }
  // Four blocks of 64 rows see 1, 2, 2 and 2 blocks of columns, each with half of its diagonal block.
  const double block = 64 * 64, half = 64 * 65 / 2, whole = 256 * 257 / 2;
  EXPECT_NEAR(group("run", "attention_density").at(0).at("blocks.1").get<double>(), (4 * half + 3 * block) / whole,
              1e-6);
  EXPECT_TRUE(group("run", "attention_entropy").at(0).contains("blocks.0"));
}

// From step 10 to step 40 the weight decay changes linearly. Runs without the setting record no weight decay.
TEST_F(EmaRuns, WeightDecayFollowsItsSchedule) {
  trained("run", {"schedule.kind=linear", "schedule.final_weight_decay=4", "optimizer.weight_decay=0.2"});
  const std::vector<Json> steps = group("run", "train");
  ASSERT_EQ(steps.size(), 40u);
  for (std::size_t i = 0; i < 40; ++i) {
    const double want = 0.2 * (i < 10 ? 1 : 1 + 3 * (static_cast<double>(i) - 10) / 30);
    EXPECT_NEAR(steps[i].at("weight_decay").get<double>(), want, 1e-9) << i;
  }
  trained("constant", {});
  EXPECT_FALSE(group("constant", "train").at(0).contains("weight_decay"));
  const Finished never = run_process(train("never", {"schedule.kind=constant", "schedule.final_weight_decay=0"}));
  EXPECT_EQ(never.code, 1);
  for (const char* part : {"final_weight_decay: 0", "schedule.kind: constant"})
    EXPECT_NE(never.output.find(part), std::string::npos) << never.output;
}

}  // namespace
}  // namespace ring::test
