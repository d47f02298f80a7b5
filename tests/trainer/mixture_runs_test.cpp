// Whole runs on a mixture whose weights change: the records of each corpus, and resuming.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "core/philox.h"
#include "tests/paths.h"
#include "tests/process.h"
#include "tests/trainer/documents.h"
#include "trainer/records.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

class MixtureRuns : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("ringmaster-mixture-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    write_documents(path("a.h5"), 90, 9, [](std::uint64_t d) { return 5 + random_bits({7, 0, 0}, d) % 30; });
    write_documents(path("b.h5"), 40, 4, [](std::uint64_t d) { return 40 + random_bits({8, 0, 0}, d) % 90; });
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // A step has 128 tokens: corpus b begins with step 14.
  Finished train(const std::string& run, std::int64_t steps, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {ring_binary(),
                                    "train",
                                    source_dir() + "/configs/nanogpt_cpu.yaml",
                                    "run.directory=" + path(run),
                                    "run.device=cpu",
                                    "run.threads=1",
                                    "data.path=",
                                    "data.mixture=[{path: " + path("a.h5") + "}, {path: " + path("b.h5") +
                                        ", name: code, weight: [[0, 0], [1664, 0.5]]}]",
                                    "model.context=32",
                                    "model.width=32",
                                    "model.layers=2",
                                    "train.batch_size=4",
                                    "train.micro_batch=2",
                                    "train.log_interval=1",
                                    "train.eval_interval=10",
                                    "checkpoint.interval=10",
                                    "train.steps=" + std::to_string(steps)};
    all.insert(all.end(), more.begin(), more.end());
    return run_process(all);
  }
  std::map<std::int64_t, Record> records(const std::string& run, const std::string& group) const {
    std::map<std::int64_t, Record> out;
    read_records(path(run + "/metrics.jsonl"), [&](const Record& r) {
      if (r.group == group) out[r.step] = r;
    });
    return out;
  }
  fs::path folder_;
};

double number(const Record& r, const std::string& name) { return r.number(name).value_or(0); }

TEST_F(MixtureRuns, RecordEachCorpusAndResumeBeforeAChange) {
  const Finished whole = train("whole", 20);
  ASSERT_EQ(whole.code, 0) << whole.output;
  const auto steps = records("whole", "train");
  ASSERT_EQ(steps.size(), 20u);
  for (const auto& [step, r] : steps) {
    EXPECT_EQ(r.find("loss/code") != nullptr, step > 13) << "step " << step;
    const double sum = number(r, "loss/a") * number(r, "share/a") + number(r, "loss/code") * number(r, "share/code");
    EXPECT_NEAR(sum, number(r, "loss"), 1e-6 * number(r, "loss")) << "step " << step;
    EXPECT_NEAR(number(r, "share/a") + number(r, "share/code"), 1, 1e-12);
    EXPECT_NEAR(number(r, "share/code"), step > 13 ? 0.33 : 0, step > 13 ? 0.18 : 0) << "step " << step;
  }
  const Record validation = records("whole", "validation").at(20);
  const double low = std::min(number(validation, "loss/a"), number(validation, "loss/code"));
  EXPECT_GT(low, 0);
  EXPECT_GT(number(validation, "loss"), low);
  EXPECT_LT(number(validation, "loss"), std::max(number(validation, "loss/a"), number(validation, "loss/code")));

  ASSERT_EQ(train("cut", 20).code, 0);
  fs::remove_all(folder_ / "cut/checkpoints/step-000000020");  // as if the run had been killed just before
  const Finished refused = train("cut", 20, {"data.mixture[1].weight=[[0, 0], [1664, 0.6]]"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.output.find("data.mixture[1].weight: [[0, 0], [1664, 0.5]] -> [[0, 0], [1664, 0.6]]"),
            std::string::npos)
      << refused.output;
  const Finished resumed = train("cut", 20, {"data.mixture[1].name=text"});  // a change without effect on numbers
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("resuming from step 10"), std::string::npos) << resumed.output;
  for (const auto& [step, r] : records("cut", "train")) {
    EXPECT_EQ(number(r, "loss"), number(steps.at(step), "loss")) << "step " << step;
    EXPECT_EQ(number(r, "loss/a"), number(steps.at(step), "loss/a")) << "step " << step;
    EXPECT_EQ(number(r, step > 10 ? "loss/text" : "loss/code"), number(steps.at(step), "loss/code")) << "step " << step;
  }

  const Finished evaluated = run_process({ring_binary(), "eval", path("whole"), "--device", "cpu"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.output;
  EXPECT_NE(evaluated.output.find("\n  code: loss "), std::string::npos) << evaluated.output;
  const Finished report = run_process({ring_binary(), "report", path("whole"), "--output", path("report.html")});
  ASSERT_EQ(report.code, 0) << report.output;
  std::stringstream page;
  page << std::ifstream(path("report.html")).rdbuf();
  EXPECT_NE(page.str().find("Validation loss by corpus"), std::string::npos);
}

// A record covers all steps since the record before.
TEST_F(MixtureRuns, RecordsAreMeansOverTheirSteps) {
  ASSERT_EQ(train("each", 16).code, 0);
  ASSERT_EQ(train("some", 16, {"train.log_interval=8"}).code, 0);
  const auto each = records("each", "train"), some = records("some", "train");
  ASSERT_EQ(some.size(), 2u);
  for (const char* name : {"a", "code"}) {
    double sum = 0, share = 0;
    for (std::int64_t step = 9; step <= 16; ++step) {  // all steps have the same number of targets
      const double part = number(each.at(step), std::string("share/") + name);
      sum += part * number(each.at(step), std::string("loss/") + name);
      share += part;
    }
    EXPECT_NEAR(number(some.at(16), std::string("loss/") + name), sum / share, 1e-5);
    EXPECT_NEAR(number(some.at(16), std::string("share/") + name), share / 8, 1e-6);
  }
}

}  // namespace
}  // namespace ring::test
