// A run's memory record, the notes of its ranks, and what a resume concludes from both.

#include "engine/memory_record.h"

#include <gtest/gtest.h>

#include <csignal>

#include "checkpoint/files.h"
#include "checkpoint/writer_token.h"
#include "core/fields.h"
#include "tests/trainer/runs.h"
#include "tests/trainer/tiny.h"

namespace ring::test {
namespace {

MemoryRecord record(std::int64_t ran_out, std::int64_t token, std::uint64_t budget) {
  MemoryRecord r;
  r.ran_out = r.steps_ran_out = ran_out;
  r.token = token;
  r.micro_batch = 4;
  r.budget = budget;
  r.peak = budget - 1;
  r.plan = "2 blocks keep everything";
  r.why = ran_out ? "rank 1 ran out of memory" : "";
  r.chosen_for = {{"train.recompute", "auto"}, {"processes", "2"}};
  return r;
}

class MemoryRecords : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ring_memory_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    run_ = std::make_unique<RunDirectory>(pattern);
  }
  void TearDown() override { fs::remove_all(run_->path()); }
  const RunDirectory& run() const { return *run_; }
  void write_file(const std::string& file, const std::string& text) const {
    std::ofstream(run_->path() + "/" + file) << text;
  }

 private:
  std::unique_ptr<RunDirectory> run_;
};

TEST_F(MemoryRecords, AreReadAsTheyWereWritten) {
  EXPECT_FALSE(recall_memory(run(), ""));
  const MemoryRecord r = record(3, 7, 1000);
  write_memory(run(), r);
  const auto again = recall_memory(run(), to_json(record(1, 5, 2000)));  // the file is newer than the checkpoint
  ASSERT_TRUE(again);
  EXPECT_EQ(to_json(*again), to_json(r));
  EXPECT_EQ(changes_since(*again, r), "");
  MemoryRecord other = r;
  other.chosen_for["processes"] = "4";
  EXPECT_EQ(changes_since(r, other), "processes: 2 -> 4");
}

// A choice made for one number format does not fit another one.
TEST(MemoryRecord, ChangesWithTheFormatOfLinearLayers) {
  const auto mesh = Mesh::fake({.axes = {{"dp", 1}}}, 0);
  const auto record_with = [&](const std::vector<std::string>& settings) {
    Config c = tiny_config();
    c.model.mlp_width = 128;
    override_config(c, settings);
    return memory_record_of(c, *mesh);
  };
  const std::string fp8 = "train.linears=fp8_blocks";
  const auto changes = [&](const std::vector<std::string>& settings) {
    return changes_since(record_with({fp8}), record_with(settings));
  };
  EXPECT_EQ(changes({fp8}), "");
  EXPECT_EQ(changes({"train.linears=fp8_tensor"}), "train.linears: fp8_blocks -> fp8_tensor");
  EXPECT_EQ(changes({fp8, "train.swiglu_inputs=fp8"}), "train.swiglu_inputs: auto -> fp8");
  EXPECT_EQ(changes({fp8, "train.linears_except=['*.mlp.down.*']"}).rfind("train.linears_except: ", 0), 0);
}

TEST_F(MemoryRecords, ADamagedFileLeavesTheRecordOfTheCheckpointOrNone) {
  const std::string whole = to_json(record(3, 7, 1000)), kept = to_json(record(2, 6, 2000));
  for (const std::string& text :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("{}"), std::string("[1, 2]"),
        std::string(R"({"ran_out":-1,"token":1,"micro_batch":1,"budget":9,"peak":8,"plan":"","why":"","for":{}})"),
        std::string(R"({"ran_out":1,"token":1,"micro_batch":0,"budget":9,"peak":8,"plan":"","why":"","for":{}})"),
        std::string(R"({"ran_out":1,"token":1,"micro_batch":1,"budget":0,"peak":0,"plan":"","why":"","for":{}})"),
        std::string(R"({"ran_out":1,"token":1,"micro_batch":1,"budget":1e300,"peak":8,"plan":"","why":"","for":{}})"),
        std::string(R"({"ran_out":1,"token":1,"micro_batch":1,"budget":9,"peak":8,"plan":"","why":"","for":[]})")}) {
    EXPECT_THROW(parse_memory_record(text), Error) << text;
    write_file("memory.json", text);
    EXPECT_FALSE(recall_memory(run(), "")) << text;
    const auto found = recall_memory(run(), kept);
    ASSERT_TRUE(found) << text;
    EXPECT_EQ(to_json(*found), kept);
    EXPECT_FALSE(recall_memory(run(), text)) << text;
  }
}

TEST_F(MemoryRecords, TheSmallestNoteOfTheNewestWriterCounts) {
  const WriterToken token(run().path());
  const std::int64_t own = token.number();
  write_memory(run(), record(1, own, 1000));
  const auto budget = [&] { return recall_memory(run(), "")->budget; };
  write_memory_note(run(), 0, record(1, own, 100));      // a note on an earlier choice
  write_memory_note(run(), 1, record(2, own + 1, 100));  // a note of a different writer
  EXPECT_EQ(budget(), 1000u);
  write_memory_note(run(), 2, record(2, own, 800));
  write_memory_note(run(), 3, record(2, own, 700));
  EXPECT_EQ(budget(), 700u);
  MemoryRecord fewer = record(2, own, 900);
  fewer.micro_batch = 2;
  write_memory_note(run(), 4, fewer);
  EXPECT_EQ(budget(), 900u);  // with fewer sequences at a time
  fewer.validation_micro_batch = 1;
  write_memory_note(run(), 7, fewer);
  EXPECT_EQ(recall_memory(run(), "")->validation_micro_batch, 1);
  write_file("out_of_memory/rank-5.json", to_json(record(2, own, 10)).substr(0, 40));
  write_file("out_of_memory/rank-6.json.tmp", to_json(record(2, own, 10)));
  EXPECT_EQ(budget(), 900u);
  write_memory(run(), fewer);
  EXPECT_EQ(budget(), 900u);
  EXPECT_FALSE(fs::exists(run().path() + "/out_of_memory"));
  const WriterToken newer(run().path());
  write_memory_note(run(), 0, record(3, own, 100));  // a note of a process that does not know of the takeover
  EXPECT_EQ(budget(), 900u);
}

class OutOfMemoryRuns : public Runs {
 protected:
  Finished run_training(const std::string& run, const std::vector<std::string>& more) const {
    std::vector<std::string> words = train(run, {"model.context=64", "model.layers=3", "train.steps=12",
                                                 "train.batch_size=8", "train.eval_interval=0", "run.threads=1"});
    words.insert(words.end(), more.begin(), more.end());
    return run_process(words);
  }
  nlohmann::json recorded(const std::string& run) const { return parse_file(path(run + "/memory.json")); }
  // Returns the metrics' records of memory.
  std::vector<nlohmann::json> memory_records(const std::string& run) const {
    std::vector<nlohmann::json> all;
    std::ifstream in(path(run + "/metrics.jsonl"));
    for (std::string line; std::getline(in, line);)
      if (const auto json = nlohmann::json::parse(line); json.value("group", "") == "memory") all.push_back(json);
    return all;
  }
  static nlohmann::json parse_file(const std::string& file) {
    std::ifstream in(file);
    return nlohmann::json::parse(in);
  }
  static bool says(const Finished& f, const std::string& text) { return f.output.find(text) != std::string::npos; }
};

TEST_F(OutOfMemoryRuns, EveryShortageInAStepIsRecorded) {
  const Finished f = run_training("r", {"--inject", "7:memory@step=3,nth=40;memory@step=3,nth=60"});
  ASSERT_EQ(f.code, 0) << f.output;
  EXPECT_EQ(recorded("r").at("ran_out"), 2) << f.output;
  EXPECT_EQ(recorded("r").at("steps_ran_out"), 2);
  const std::vector<nlohmann::json> all = memory_records("r");
  ASSERT_EQ(all.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(all[i].at("ran_out"), i + 1);
    EXPECT_TRUE(says(f, all[i].at("why"))) << all[i];
  }
  EXPECT_LT(all[1].at("peak"), all[0].at("peak"));
}

TEST_F(OutOfMemoryRuns, ARunThatEndsRecordsItsSmallestSizes) {
  const Finished f = run_training("r", {"train.recompute=none", "--inject", "7:memory@step=3,nth=1,times=100000000"});
  EXPECT_EQ(f.code, 1) << f.output;
  EXPECT_EQ(recorded("r").at("micro_batch"), 1);
  const std::vector<nlohmann::json> all = memory_records("r");
  ASSERT_FALSE(all.empty()) << f.output;
  EXPECT_EQ(recorded("r").at("ran_out"), all.size());
  EXPECT_EQ(recorded("r").at("why"), all.back().at("why"));
}

TEST_F(OutOfMemoryRuns, AResumeRepeatsTheSmallerChoice) {
  ASSERT_EQ(run_training("calm", {}).code, 0);
  const Finished f = run_training("r", {"checkpoint.mode=blocking", "--inject", "7:memory@step=3,nth=40;kill@step=9"});
  ASSERT_EQ(f.code, -SIGKILL) << f.output;
  EXPECT_TRUE(says(f, "ran out of memory in the ")) << f.output;
  EXPECT_EQ(recorded("r").at("ran_out"), 1);
  const nlohmann::json chosen = recorded("r").at("plan");
  EXPECT_EQ(parse_file(path("r/checkpoints/step-000000005/manifest.json")).at("metadata").at("memory").at("plan"),
            chosen);
  const Finished same = run_training("r", {});
  EXPECT_TRUE(says(same, "keeps the smaller sizes")) << same.output;
  EXPECT_EQ(recorded("r").at("plan"), chosen);
  EXPECT_EQ(losses("r"), losses("calm"));
}

TEST_F(OutOfMemoryRuns, ACheckpointStoresTheChoiceToo) {
  ASSERT_EQ(run_training("r", {"--inject", "7:memory@step=8,nth=40"}).code, 0);
  const nlohmann::json chosen = recorded("r").at("plan");
  std::ofstream(path("r/memory.json")) << "{\"ran_out\": ";
  const Finished damaged = run_training("r", {});
  ASSERT_EQ(damaged.code, 0) << damaged.output;
  EXPECT_TRUE(says(damaged, "memory.json cannot be read")) << damaged.output;
  EXPECT_TRUE(says(damaged, "keeps the smaller sizes")) << damaged.output;
  EXPECT_EQ(recorded("r").at("plan"), chosen);
}

TEST_F(OutOfMemoryRuns, ChangedSettingsReplaceTheRecordedChoice) {
  ASSERT_EQ(run_training("r", {"--inject", "7:memory@step=8,nth=40"}).code, 0);
  const Finished other = run_training("r", {"train.memory_budget=1e9"});
  ASSERT_EQ(other.code, 0) << other.output;
  EXPECT_TRUE(says(other, "no longer apply: train.memory_budget: 0 -> ")) << other.output;
  EXPECT_EQ(recorded("r").at("ran_out"), 0);
  EXPECT_TRUE(says(run_training("r", {"--fresh"}), "3 blocks keep everything"));
}

TEST_F(OutOfMemoryRuns, AResumeKeepsFewerSequences) {
  ASSERT_EQ(run_training("calm", {"train.recompute=block"}).code, 0);
  const Finished f = run_training("r", {"train.recompute=block", "--inject", "7:memory@step=8,nth=40"});
  ASSERT_EQ(f.code, 0) << f.output;
  EXPECT_TRUE(says(f, "1 sequence at a time")) << f.output;
  EXPECT_EQ(recorded("r").at("micro_batch"), 1);
  const auto calm = losses("calm"), halved = losses("r");
  for (const auto& [step, loss] : calm)
    EXPECT_NEAR(std::stod(halved.at(step)), std::stod(loss), 1e-6 * std::stod(loss));
  const Finished resumed = ring({"train", path("r")});
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_TRUE(says(resumed, "1 sequence at a time")) << resumed.output;
}

// The steps' own memory is free during validation, so that only fewer sequences help. They do not change the weights.
TEST_F(OutOfMemoryRuns, AValidationContinuesWithFewerSequences) {
  ASSERT_EQ(run_training("calm", {"train.eval_interval=5"}).code, 0);
  const Finished f = run_training("r", {"train.eval_interval=5", "--inject", "7:memory@step=5,phase=validate,nth=7"});
  ASSERT_EQ(f.code, 0) << f.output;
  EXPECT_TRUE(says(f, "validation after step 5 (out of memory")) << f.output;
  EXPECT_TRUE(says(f, "1 sequence at a time instead of 2")) << f.output;
  EXPECT_EQ(recorded("r").at("validation_micro_batch"), 1);
  EXPECT_EQ(recorded("r").at("micro_batch"), 2);
  EXPECT_EQ(recorded("r").at("ran_out"), 1);
  EXPECT_EQ(recorded("r").at("steps_ran_out"), 0) << "steps had enough";
  EXPECT_EQ(losses("r"), losses("calm"));
  const Finished again = run_training("r", {"train.eval_interval=5", "train.steps=16", "--allow-changes"});
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(recorded("r").at("validation_micro_batch"), 1);
  EXPECT_FALSE(says(again, "ran out of memory in")) << again.output;
  EXPECT_TRUE(says(again, "validations compute 1 sequence")) << again.output;
}

TEST_F(OutOfMemoryRuns, AValidationOfOneSequenceThatDoesNotFitEndsTheRun) {
  const Finished f = run_training(
      "r", {"train.eval_interval=5", "--inject", "7:memory@step=5,phase=validate,nth=7,times=2", "run.threads=1"});
  EXPECT_EQ(f.code, 1) << f.output;
  EXPECT_TRUE(says(f, "Lower model.context")) << f.output;
  EXPECT_EQ(recorded("r").at("validation_micro_batch"), 1);
}

}  // namespace
}  // namespace ring::test
