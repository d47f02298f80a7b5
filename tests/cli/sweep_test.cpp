// `ringmaster sweep`: its files, and the program, also stopped and started again.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "cli/sweep_plan.h"
#include "core/check.h"
#include "core/exit_code.h"
#include "tests/paths.h"
#include "tests/process.h"
#include "trainer/run_summary.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

class SweepTest : public testing::Test {
 protected:
  SweepTest() : folder_(fs::temp_directory_path() / str("ring_sweep_", getpid())) { fs::create_directories(folder_); }
  ~SweepTest() override { fs::remove_all(folder_); }

  std::string path_of(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_of(name)) << text;
    return path_of(name);
  }
  SweepPlan plan(const std::string& rest) const {
    return read_sweep(write("s.yaml", "train: t.yaml\ndirectory: runs/s\n" + rest));
  }
  std::string refused(const std::string& text) const {
    try {
      read_sweep(write("s.yaml", text));
    } catch (const Error& e) {
      return e.what();
    }
    ADD_FAILURE() << "accepted: " << text;
    return "";
  }

  const fs::path folder_;
};

TEST_F(SweepTest, AGridHasEachCombination) {
  const SweepPlan p = plan("settings: {optimizer.lr: [1e-3, 0.003], train.batch_size: [2, 4, 8]}\n");
  EXPECT_EQ(p.train, "t.yaml");
  EXPECT_EQ(p.directory, "runs/s");
  EXPECT_EQ(p.keys, (std::vector<std::string>{"optimizer.lr", "train.batch_size"}));
  ASSERT_EQ(p.runs.size(), 6u);
  EXPECT_EQ(p.runs[1].name, "002");
  EXPECT_EQ(p.runs[1].settings, (std::vector<std::string>{"optimizer.lr=1e-3", "train.batch_size=4"}));
  EXPECT_EQ(p.runs[5].settings, (std::vector<std::string>{"optimizer.lr=0.003", "train.batch_size=8"}));
}

TEST_F(SweepTest, DrawsFillTheirRangesAndDoNotDependOnTheirNumber) {
  const std::string settings = "settings: {optimizer.lr: {from: 1e-4, to: 1e-2, scale: log}, x: [a, b]}\n";
  const SweepPlan p = plan(settings + "runs: 400\n");
  int below = 0;
  std::set<std::string> words;
  for (const SweepRun& r : p.runs) {
    const double lr = std::stod(r.settings[0].substr(std::string("optimizer.lr=").size()));
    EXPECT_TRUE(lr >= 1e-4 && lr <= 1e-2) << r.settings[0];
    below += lr < 1e-3;
    words.insert(r.settings[1]);
  }
  EXPECT_NEAR(below, 200, 50);  // half of the draws, within five standard deviations
  EXPECT_EQ(words, (std::set<std::string>{"x=a", "x=b"}));
  EXPECT_EQ(plan(settings + "runs: 7\n").runs[6].settings, p.runs[6].settings);
  EXPECT_NE(plan(settings + "runs: 7\nseed: 2\n").runs[6].settings, p.runs[6].settings);
}

TEST_F(SweepTest, MistakesAreNamedByFileLineAndKey) {
  const std::string head = "train: t.yaml\ndirectory: d\n";
  EXPECT_TRUE(refused("[").starts_with(path_of("s.yaml") + ":")) << refused("[");
  EXPECT_NE(refused("a").find("a section of"), std::string::npos);
  EXPECT_EQ(refused(head), path_of("s.yaml") + ":1: the key 'settings' is required");
  EXPECT_NE(refused(head + "settngs: {a: [1]}\n").find("s.yaml:3: settngs: unknown key"), std::string::npos);
  for (const char* wrong :
       {"{}", "[]", "{a: []}", "{a: 1}", "{a: [[1]]}", "{a: {from: 1}}", "{a: {from: 2, to: 1}}",
        "{a: {from: 0, to: 1, scale: log}}", "{a: {from: 0, to: inf}}", "{a: {from: 0, to: 1, step: 1}}",
        "{a: [1], a: [2]}", "{run.directory: [x]}", "{a: {from: 0, to: 1}}"}) {
    const std::string error = refused(head + "settings: " + wrong + "\n");
    EXPECT_TRUE(error.starts_with(path_of("s.yaml") + ":")) << wrong << ": " << error;
  }
  for (const char* runs : {"0", "1001", "2.5", "many", "[1]"})
    EXPECT_NE(refused(head + "settings: {a: [1]}\nruns: " + runs + "\n").find("s.yaml:4: runs: "), std::string::npos);
  std::string many = "settings: {";
  for (int i = 0; i < 40; ++i) many += str("k", i, ": [1, 2], ");
  EXPECT_NE(refused(head + many + "z: [1]}\n").find("more than 1000 runs"), std::string::npos);
}

class SweepRuns : public SweepTest {
 protected:
  test::Finished sweep(std::vector<std::string> words) const {
    words.insert(words.begin(), {test::ring_binary(), "sweep", path_of("s.yaml")});
    return test::run_process(words);
  }
  void prepare(int steps, const std::string& settings) const {
    write("text.txt", std::string(3000, 'a'));
    const test::Finished f = test::run_process({test::ring_binary(), "data", "prepare", "--input", path_of("text.txt"),
                                                "--tokenizer", "bytes", "--output", path_of("c.h5")});
    ASSERT_EQ(f.code, 0) << f.output;
    write("t.yaml", str("run: {device: cpu}\nmodel: {context: 32, layers: 1, width: 32, heads: 2}\ndata: {path: ",
                        path_of("c.h5"), "}\ntrain: {batch_size: 2, steps: ", steps, "}\n"));
    write("s.yaml",
          str("train: ", path_of("t.yaml"), "\ndirectory: ", path_of("runs"), "\nsettings: ", settings, "\n"));
  }
};

TEST_F(SweepRuns, AllRunsAreTrainedAndTheBestIsShownFirst) {
  prepare(30, "{optimizer.lr: [1e-9, 1e-2]}");
  const test::Finished plan = sweep({"--dry-run"});
  EXPECT_EQ(plan.code, 0) << plan.output;
  EXPECT_FALSE(fs::exists(path_of("runs")));
  const test::Finished done = sweep({"--parallel", "2", "--log-level", "error"});
  EXPECT_EQ(done.code, 0) << done.output;
  std::ifstream log(path_of("runs/001.log"));
  const std::string said((std::istreambuf_iterator<char>(log)), {});
  EXPECT_NE(said.find("trained 30 steps"), std::string::npos) << said;
  EXPECT_EQ(said.find(" I run "), std::string::npos) << "the level of the sweep is that of its runs: " << said;
  const std::size_t best = done.output.rfind("\n002  "), worst = done.output.rfind("\n001  ");
  EXPECT_LT(best, worst) << done.output;
  const auto written = fs::last_write_time(path_of("runs/002/metrics.jsonl"));
  EXPECT_EQ(sweep({}).code, 0);
  EXPECT_EQ(fs::last_write_time(path_of("runs/002/metrics.jsonl")), written);  // finished runs are not repeated
  std::ifstream settings(path_of("runs/002/config.yaml"));
  EXPECT_NE(std::string((std::istreambuf_iterator<char>(settings)), {}).find("name: \"002\""), std::string::npos);
  write("s.yaml",
        str("train: ", path_of("t.yaml"), "\ndirectory: ", path_of("runs"), "\nsettings: {optimizer.lr: [1, 2]}\n"));
  const test::Finished other = sweep({});
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.output.find("started with other runs"), std::string::npos) << other.output;
}

// The run is ranked last, wherever it is in the plan.
TEST_F(SweepRuns, ANanLossIsTheWorst) {
  prepare(2, "{optimizer.lr: [1e-3, 2e-3, 1e-4]}");
  EXPECT_EQ(sweep({}).code, 0);
  const char* const losses[] = {"3", "null,\"loss_text\":\"nan\"", "2"};
  for (const int run : {0, 1, 2}) {
    const std::string records = str("runs/00", run + 1, "/metrics.jsonl");
    std::ifstream file(path_of(records));
    std::string all, job;
    for (std::string line; std::getline(file, line);)
      if (line.find("\"group\":\"job\"") != std::string::npos) job = line + "\n";
    write(records, str("{\"step\":2,\"group\":\"validation\",\"time\":1,\"loss\":", losses[run], "}\n", job));
  }
  const std::string table = sweep({}).output;
  const std::size_t best = table.find("\n003  "), middle = table.find("\n001  "), worst = table.find("\n002  ");
  EXPECT_TRUE(best < middle && middle < worst && worst != std::string::npos) << table;
}

TEST_F(SweepRuns, AStoppedSweepResumes) {
  prepare(1'000'000, "{optimizer.lr: [1e-3, 2e-3], train.steps: [100000]}");
  test::Process first({test::ring_binary(), "sweep", path_of("s.yaml")});
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < end && summarize_run(path_of("runs/001")).step == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  first.signal(SIGTERM);
  const test::Finished stopped = first.wait();
  EXPECT_EQ(stopped.code, kExitInterrupted) << stopped.output;
  EXPECT_NE(stopped.output.find("to resume: ringmaster sweep"), std::string::npos) << stopped.output;
  const RunSummary saved = summarize_run(path_of("runs/001"));
  EXPECT_EQ(saved.status, kRunStopped) << saved.note;
  EXPECT_FALSE(fs::exists(path_of("runs/002")));
  test::Process second({test::ring_binary(), "sweep", path_of("s.yaml")});
  while (std::chrono::steady_clock::now() < end && summarize_run(path_of("runs/001")).step <= saved.step)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  second.signal(SIGTERM);
  EXPECT_EQ(second.wait().code, kExitInterrupted);
  EXPECT_GT(summarize_run(path_of("runs/001")).step, saved.step);
  std::ifstream log(path_of("runs/001.log"));
  const std::string text((std::istreambuf_iterator<char>(log)), {});
  EXPECT_NE(text.find("resuming from step"), std::string::npos) << text;
}

TEST_F(SweepRuns, AFailureDoesNotStopTheOthers) {
  prepare(3, "{data.path: [" + path_of("none.h5") + ", " + path_of("c.h5") + "]}");
  const test::Finished done = sweep({});
  EXPECT_EQ(done.code, 1) << done.output;
  EXPECT_NE(done.output.find("1 run of 2"), std::string::npos) << done.output;
  EXPECT_EQ(summarize_run(path_of("runs/002")).status, kRunFinished);
}

TEST_F(SweepRuns, AMistakeInTheLastRunIsReportedBeforeTheFirstBegins) {
  prepare(3, "{optimizer.lr: [1e-3, fast]}");
  const test::Finished wrong = sweep({});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_NE(wrong.output.find("run 002 (optimizer.lr=fast)"), std::string::npos) << wrong.output;
  EXPECT_FALSE(fs::exists(path_of("runs")));
}

}  // namespace
}  // namespace ring
