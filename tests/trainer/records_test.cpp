// Reading metrics.jsonl and the directories of runs, whatever program wrote them.
#include "trainer/records.h"

#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/check.h"
#include "engine/run_directory.h"
#include "tests/trainer/tiny.h"
#include "text/tokenizer.h"
#include "trainer/folder_name.h"
#include "trainer/metrics.h"
#include "trainer/metrics_csv.h"
#include "trainer/run_compare.h"
#include "trainer/run_summary.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

class RecordsTest : public testing::Test {
 protected:
  RecordsTest() : folder_(fs::temp_directory_path() / str("ring_records_", getpid())) {
    fs::create_directories(folder_);
  }
  ~RecordsTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static Config settings() {
    Config config = test::tiny_config();
    config.data.path = "a.h5";
    return config;
  }
  std::string write_run(const std::string& name, const std::string& records, std::int64_t steps = 100) const {
    fs::create_directories(folder_ / name / "checkpoints");
    Config config = settings();
    config.train.steps = steps;
    if (steps == 0) config.train.minutes = 1;
    std::ofstream(folder_ / name / "config.yaml") << settings_with_hash(config);
    std::ofstream(folder_ / name / "metrics.jsonl", std::ios::binary) << records;
    return path(name);
  }
  RunSummary summary(const std::string& records, std::int64_t steps = 100) const {
    return summarize_run(write_run("run", records, steps));
  }

  const fs::path folder_;
};

std::string line(const std::string& group, std::int64_t step, const std::string& rest = "") {
  return str("{\"step\":", step, ",\"group\":\"", group, "\",\"time\":1.5", rest.empty() ? "" : ",", rest, "}\n");
}

// `train --fresh` replaces a run on chats with a run without chats.
TEST_F(RecordsTest, ANewRunRemovesTheChatTemplateOfTheRunBefore) {
  const RunDirectory run(path("run"));
  fs::create_directories(run.path());
  for (const std::string chat : {R"({"chat_template":"T"})", ""}) {
    run.create(test::tiny_config(), *bytes_tokenizer(), {}, chat);
    EXPECT_EQ(fs::exists(run.chat_template_file()), !chat.empty());
  }
}

TEST_F(RecordsTest, WrittenMetricsAreReadBack) {
  fs::create_directories(path("run"));
  Metrics metrics(path("run"));
  metrics.record("train", 7, {{"loss", NAN}, {"norm", -INFINITY}, {"tokens", std::int64_t{1} << 60}, {"why", "a\n"}});
  std::vector<Record> all;
  const RecordCount count = read_records(path("run/metrics.jsonl"), [&](const Record& r) { all.push_back(r); });
  EXPECT_EQ(count.read, 1);
  EXPECT_EQ(count.damaged, 0);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].step, 7);
  EXPECT_EQ(all[0].group, "train");
  EXPECT_TRUE(std::isnan(all[0].number("loss").value()));
  EXPECT_EQ(all[0].number("norm"), -INFINITY);
  EXPECT_EQ(*all[0].find("tokens"), Record::Value(std::int64_t{1} << 60));
  EXPECT_EQ(all[0].text("why"), "a\n");
  EXPECT_EQ(all[0].values.size(), 4u);  // loss_text is not a value
}

TEST_F(RecordsTest, DamagedLinesAreCountedExceptAnIncompleteLastOne) {
  const std::string run =
      write_run("run", line("train", 1) + "\n{}\nnonsense\n[1]\n{\"step\":1.5,\"group\":\"train\"}\n" +
                           "{\"step\":1,\"group\":3}\n{\"step\":2,\"group\":\"\xff\"}\n" +
                           line("train", 2, "\"a\":{\"b\":[1,{\"c\":true}]},\"loss_text\":\"nan\"") +
                           "{\"step\":3,\"group\":\"train\"}");
  std::vector<Record> all;
  const RecordCount count = read_records(run + "/metrics.jsonl", [&](const Record& r) { all.push_back(r); });
  EXPECT_EQ(count.read, 2);
  EXPECT_EQ(count.damaged, 7);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].number("a.b.0"), 1);
  EXPECT_EQ(*all[1].find("a.b.1.c"), Record::Value(true));
  EXPECT_EQ(all[1].text("loss_text"), "nan");  // kept, since there is no loss that it could name
  EXPECT_THROW(read_records(path("none"), [](const Record&) {}), Error);
}

TEST(MetricsLines, AreTruncatedAtTheLimit) {
  std::istringstream in("ab\n\nabcdef\n12345");
  std::vector<std::string> lines;
  for (std::string line; read_metrics_line(in, line, 3) && !in.eof();) lines.push_back(line);
  EXPECT_EQ(lines, (std::vector<std::string>{"ab", "", "abcd"})) << "the last one has no end";
}

TEST(MetricsLines, HoldOneObjectEach) {
  EXPECT_EQ(parse_metrics_line(R"({"b":1,"a":2,"b":3})").dump(), R"({"b":3,"a":2})");
  for (const char* damaged : {"", "[1]", "{\"a\":1", "3"})
    EXPECT_TRUE(parse_metrics_line(damaged).is_null()) << damaged;
}

TEST_F(RecordsTest, StatusComesFromTheLastJob) {
  const std::string steps = line("start", 0) + line("train", 50, "\"loss\":2") + line("train", 100, "\"loss\":1.5");
  EXPECT_EQ(summary(steps).status, kRunFailed);  // there is no record of an end
  EXPECT_EQ(summary(steps + line("job", 100, "\"end\":\"finished\"")).status, kRunFinished);
  EXPECT_EQ(summary(steps + line("job", 100, "\"end\":\"stopped\""), 200).status, kRunStopped);
  EXPECT_EQ(summary(steps + line("job", 100, "\"end\":\"out of time\""), 200).status, kRunStopped);
  EXPECT_EQ(summary(steps + line("job", 100, "\"end\":\"out of time\""), 0).status, kRunFinished);
  EXPECT_EQ(summary(steps + line("job", 100)).status, kRunFinished);  // a record of an older version
  EXPECT_EQ(summary(steps + line("job", 100), 200).status, kRunStopped);
  // Another process started after the end.
  EXPECT_EQ(summary(steps + line("job", 100, "\"end\":\"stopped\"") + line("start", 100), 200).status, kRunFailed);
  const RunSummary failed = summary(steps + line("job", 100, "\"end\":\"failed\",\"error\":\"disk\\nmore\""), 200);
  EXPECT_EQ(failed.status, kRunFailed);
  EXPECT_EQ(failed.note, "disk");
  EXPECT_EQ(summary("").status, kRunFailed);
}

TEST_F(RecordsTest, AHeldLockMeansRunning) {
  const std::string run = write_run("run", line("train", 1));
  EXPECT_FALSE(RunDirectory(run).in_use());
  {
    const auto lock = RunDirectory(run).lock();
    EXPECT_TRUE(RunDirectory(run).in_use());
    EXPECT_EQ(summarize_run(run).status, kRunRunning);
    EXPECT_THROW(RunDirectory(run).lock(), Error);
  }
  EXPECT_FALSE(RunDirectory(run).in_use());
  EXPECT_EQ(summarize_run(run).status, kRunFailed);
}

// A run that is stopped ends between two train records.
TEST_F(RecordsTest, TheStepIsTheLastOneKnownToBeDone) {
  const std::string start = line("start", 0, "\"device\":\"cpu\""), train = line("train", 150, "\"loss\":1");
  const std::string saved = line("checkpoint", 159, "\"seconds\":1"), end = line("job", 159, "\"end\":\"stopped\"");
  EXPECT_EQ(summary(start + train + saved + end).step, 159);
  EXPECT_EQ(summary(start + train + saved).step, 159);  // killed after a save
  EXPECT_EQ(summary(start + line("job", 1, "\"end\":\"stopped\"")).step, 1);
  EXPECT_EQ(summary(start + train + line("checkpoint", 159, "\"error\":\"full\"")).step, 150);
  EXPECT_EQ(summary(start + line("train", 160, "\"loss\":1") + saved).step, 160);  // steps continued during the save
  // A step that was not taken has a record, too.
  EXPECT_EQ(summary(start + train + line("train", 151, "\"loss\":null") + line("job", 150, "\"end\":\"failed\"")).step,
            150);
}

TEST_F(RecordsTest, ASummaryHasTheBestAndTheLastValues) {
  const RunSummary s = summary(
      line("start", 0, "\"device\":\"cuda\",\"device_name\":\"NVIDIA H200\",\"processes\":4,\"layout\":\"dp 4\"") +
      line("train", 10, "\"loss\":3,\"tokens_per_second\":100,\"memory_peak\":9") +
      line("validation", 10, "\"loss\":2.5") +
      line("train", 20, "\"loss\":2,\"tokens_per_second\":300,\"memory_peak\":7") +
      line("validation", 20, "\"loss\":2.75") + line("train", 30, "\"loss\":null,\"loss_text\":\"nan\"") +
      line("train", 40, "\"loss\":1,\"tokens_per_second\":200") + line("job", 40, "\"goodput\":0.5,\"restarts\":2"));
  EXPECT_EQ(s.step, 40);
  EXPECT_EQ(s.steps, 100);
  EXPECT_EQ(s.loss, 1);
  EXPECT_EQ(s.validation_loss, 2.5);
  EXPECT_EQ(s.tokens_per_second, 200);
  EXPECT_EQ(s.memory_peak, 9);
  EXPECT_EQ(s.goodput, 0.5);
  EXPECT_EQ(s.device, "NVIDIA H200");
  EXPECT_EQ(s.processes, 4);
  EXPECT_EQ(s.layout, "dp 4");
  EXPECT_GT(s.age.value(), 1e9);
}

TEST_F(RecordsTest, ANanLossIsNotTheLowest) {
  const std::string none = line("validation", 10, "\"loss\":null,\"loss_text\":\"nan\""),
                    some = line("validation", 20, "\"loss\":2.5");
  EXPECT_EQ(summary(some + none).validation_loss, 2.5);
  EXPECT_EQ(summary(none + some).validation_loss, 2.5);
  EXPECT_TRUE(std::isnan(summary(none).validation_loss.value()));
}

TEST_F(RecordsTest, ASummaryPassesOnSettingsAndRecords) {
  const std::string run = write_run("run", line("train", 1) + line("job", 100), 100);
  std::vector<std::string> seen;
  const RunSummary s = summarize_run(run, {[&](const Config& c) { seen.push_back(str(c.train.steps)); },
                                           [&](const Record& r) { seen.push_back(r.group); }});
  EXPECT_EQ(seen, (std::vector<std::string>{"100", "train", "job"}));
  EXPECT_EQ(s.step, 100);
}

TEST(FolderName, DoesNotDependOnTheSpellingOfThePath) {
  for (const char* path : {"runs/x", "runs/x/", "./runs/x//", "runs/x/.", "runs/y/../x"})
    EXPECT_EQ(folder_name(path), "x") << path;
  EXPECT_EQ(folder_name("."), fs::current_path().filename().string());
  EXPECT_EQ(folder_name("/"), "/");
}

TEST_F(RecordsTest, RestartsOfAllJobsAreAddedUp) {
  const auto restart = [](int so_far) { return line("start", 10) + line("restart", 10, str("\"restarts\":", so_far)); };
  const auto job = [](int so_far, const char* end) {
    return line("job", 20, str("\"restarts\":", so_far, ",\"end\":\"", end, "\""));
  };
  EXPECT_EQ(summary(line("start", 0) + restart(1) + restart(3) + job(3, "stopped")).restarts, 3);
  EXPECT_EQ(summary(line("start", 0) + restart(2) + job(2, "stopped") + line("start", 20) + line("train", 21) +
                    restart(1) + job(1, "finished"))
                .restarts,
            3);
  // An attempt records its failure before the launcher starts the next attempt.
  EXPECT_EQ(summary(line("start", 0) + job(0, "failed") + restart(1) + job(1, "failed") + restart(2)).restarts, 2);
  // A restart after memory ran out is recorded after a record of the memory.
  const auto smaller = [](int so_far) {
    return line("start", 10) + line("memory", 10) + line("restart", 10, str("\"restarts\":", so_far));
  };
  EXPECT_EQ(summary(line("start", 0) + smaller(1) + smaller(2)).restarts, 2);
}

TEST_F(RecordsTest, RunsAreFoundInFoldersAndDamagedRunsAreListed) {
  write_run("b", line("train", 1) + line("job", 100));
  write_run("more/a", line("train", 1) + "nonsense\n");
  std::ofstream(write_run("c", line("train", 1)) + "/config.yaml") << "train: {steps: [";
  fs::create_directories(path("d/metrics.jsonl"));  // a folder with the name of the file
  fs::create_directories(path("empty/folder"));
  fs::create_directory_symlink(folder_, path("loop"));
  const std::vector<RunSummary> runs = runs_below(folder_.string());
  ASSERT_EQ(runs.size(), 4u);
  EXPECT_EQ(runs[0].name, "b");
  EXPECT_EQ(runs[0].status, kRunFinished);
  EXPECT_EQ(runs[1].name, "c");
  EXPECT_NE(runs[1].note.find("config.yaml"), std::string::npos) << runs[1].note;
  EXPECT_EQ(runs[2].name, "d");
  EXPECT_EQ(runs[2].status, kRunUnreadable);
  EXPECT_FALSE(runs[2].note.empty());
  EXPECT_EQ(runs[3].name, "more/a");
  EXPECT_NE(runs[3].note.find("1 damaged line"), std::string::npos) << runs[3].note;
  EXPECT_EQ(runs_below(path("b")).at(0).name, "b");
  EXPECT_TRUE(runs_below(path("empty")).empty());
  EXPECT_THROW(runs_below(path("nowhere")), Error);
}

TEST_F(RecordsTest, CsvHasARowPerRecordAndQuotesIfNecessary) {
  const std::string run =
      write_run("a,b", line("train", 1, "\"loss\":0.1,\"tokens\":9007199254740993") +
                           line("job", 2, "\"error\":\"say \\\"no\\\",\\nor\",\"ok\":true,\"nothing\":null") +
                           line("train", 3, "\"loss\":null,\"loss_text\":\"-inf\",\"n\":{\"x\":1e-7}") + "torn");
  const std::string name = "\"" + run + "\"";
  EXPECT_EQ(metrics_csv({run}), "run,step,group,time,loss,tokens,error,ok,nothing,n.x\r\n" + name +
                                    ",1,train,1.5,0.1,9007199254740993,,,,\r\n" + name +
                                    ",2,job,1.5,,,\"say \"\"no\"\",\nor\",true,,\r\n" + name +
                                    ",3,train,1.5,-inf,,,,,1e-07\r\n");
  EXPECT_EQ(metrics_csv({write_run("empty", "")}), "run,step,group,time\r\n");
  EXPECT_THROW(metrics_csv({path("none")}), Error);
}

TEST_F(RecordsTest, OnlySettingsThatDifferAreCompared) {
  Config one = settings(), other = settings();
  one.run.name = "one", other.run.name = "other";
  other.optimizer.lr = 0.125;
  for (const auto& [name, config] : {std::pair("one", one), {"other", other}}) {
    write_run(name, "");
    std::ofstream(path(name) + "/config.yaml") << settings_with_hash(config);
  }
  const auto differing = differing_settings({path("one"), path("other"), path("none")});
  ASSERT_EQ(differing.size(), 1u);
  EXPECT_EQ(differing[0].key, "optimizer.lr");
  EXPECT_EQ(differing[0].values.size(), 3u);
  EXPECT_EQ(differing[0].values[1], "0.125");
  EXPECT_EQ(differing[0].values[2], kSettingsUnreadable);
}

TEST_F(RecordsTest, CommonStepsAreThoseThatAllRunsHave) {
  std::map<std::int64_t, double> twos, threes;
  for (int i = 0; i <= 60; i += 2) twos[i] = 1;
  for (int i = 0; i <= 60; i += 3) threes[i] = 1;
  EXPECT_EQ(common_steps({&twos, &threes}, 100).size(), 11u);  // 0, 6, .., 60
  const std::vector<std::int64_t> some = common_steps({&twos, &threes}, 3);
  ASSERT_EQ(some.size(), 3u);
  EXPECT_EQ(some.back(), 60);
  const std::map<std::int64_t, double> none;
  EXPECT_TRUE(common_steps({&twos, &none}, 3).empty());
}

}  // namespace
}  // namespace ring
