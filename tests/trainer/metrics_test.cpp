#include "trainer/metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/check.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

class MetricsTest : public testing::Test {
 protected:
  MetricsTest() : folder_(fs::temp_directory_path() / str("ring_metrics_", getpid())) {
    fs::create_directories(folder_);
  }
  ~MetricsTest() override { fs::remove_all(folder_); }

  std::string file() const { return (folder_ / "metrics.jsonl").string(); }
  std::vector<std::string> lines() const {
    std::ifstream in(file());
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  }
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> out;
    for (const std::string& line : lines()) out.push_back(nlohmann::json::parse(line)["step"]);
    return out;
  }
  void write(const std::string& text) const { std::ofstream(file(), std::ios::binary) << text; }

  const fs::path folder_;
};

TEST_F(MetricsTest, EachRecordIsWrittenAtOnceAsOneObject) {
  Metrics metrics(folder_.string());
  metrics.record("train", 10, {{"loss", 2.5}, {"tokens", std::int64_t{1} << 40}, {"note", "a \"b\"\n"}});
  const auto all = lines();
  ASSERT_EQ(all.size(), 1u);
  const auto json = nlohmann::json::parse(all[0]);
  EXPECT_EQ(json["step"], 10);
  EXPECT_EQ(json["group"], "train");
  EXPECT_EQ(json["loss"], 2.5);
  EXPECT_EQ(json["tokens"], std::int64_t{1} << 40);
  EXPECT_EQ(json["note"], "a \"b\"\n");
  EXPECT_GT(json["time"].get<double>(), 1.6e9);
}

// A file that may not grow stands for a disk that is full for a while.
TEST_F(MetricsTest, ALineThatDoesNotFitOnTheDiskIsRemoved) {
  Metrics metrics(folder_.string());
  metrics.record("train", 1, {{"loss", 3.0}});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit few{fs::file_size(file()) + 10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &few), 0);
  metrics.record("train", 2, {{"loss", 2.0}});
  metrics.record("train", 3, {{"loss", 2.0}});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  metrics.record("train", 4, {{"loss", 1.0}});
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 4})) << "every line is whole";
}

TEST_F(MetricsTest, LossesKeepEveryBit) {
  Metrics metrics(folder_.string());
  const double loss = 1.0 / 3;
  metrics.record("train", 1, {{"loss", loss}});
  EXPECT_EQ(nlohmann::json::parse(lines().at(0))["loss"].get<double>(), loss);
}

TEST_F(MetricsTest, NumbersThatAreNotFiniteAreNullAndNamed) {
  Metrics metrics(folder_.string());
  const double inf = std::numeric_limits<double>::infinity();
  metrics.record("train", 1, {{"a", std::nan("")}, {"b", inf}, {"c", -inf}});
  const auto json = nlohmann::json::parse(lines().at(0));
  EXPECT_TRUE(json["a"].is_null() && json["b"].is_null() && json["c"].is_null());
  EXPECT_EQ(json["a_text"], "nan");
  EXPECT_EQ(json["b_text"], "inf");
  EXPECT_EQ(json["c_text"], "-inf");
}

TEST_F(MetricsTest, InvalidUtf8DoesNotStopTheRun) {
  Metrics metrics(folder_.string());
  metrics.record("train", 1, {{"sample", std::string("\xff\xfe")}});
  EXPECT_TRUE(nlohmann::json::accept(lines().at(0)));
}

TEST_F(MetricsTest, ResumeDropsLaterSteps) {
  {
    Metrics metrics(folder_.string());
    for (const int step : {10, 20, 30, 40}) metrics.record("train", step, {{"loss", 1.0}});
  }
  Metrics metrics(folder_.string(), 20);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{10, 20}));
  metrics.record("train", 30, {{"loss", 2.0}});
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{10, 20, 30}));
  EXPECT_FALSE(fs::exists(file() + ".tmp"));
}

TEST_F(MetricsTest, ResumeDropsDamagedLines) {
  const std::string good = R"({"step":1,"loss":1.5})";
  write(good + "\n{\"step\":2,\"lo\nnot json\n[1]\n{\"step\":\"3\"}\n{\"loss\":1}\n" + R"({"step":4})" + "\n" +
        R"({"step":5})");
  EXPECT_EQ(truncate_metrics(file(), 100), 6);  // the last line is valid JSON, but has no line end
  EXPECT_EQ(lines(), (std::vector<std::string>{good, R"({"step":4})"}));
}

TEST_F(MetricsTest, ANewRunStartsEmpty) {
  write("{\"step\":1}\n");
  Metrics metrics(folder_.string());
  EXPECT_TRUE(lines().empty());
}

TEST_F(MetricsTest, ResumeWorksWithoutEarlierRecords) {
  EXPECT_EQ(truncate_metrics(file(), 5), 0);
  EXPECT_FALSE(fs::exists(file()));
  Metrics metrics(folder_.string(), 5);
  metrics.record("train", 6, {});
  EXPECT_EQ(steps(), std::vector<std::int64_t>{6});
}

TEST_F(MetricsTest, MissingDirectoryIsAnError) { EXPECT_THROW(Metrics((folder_ / "missing").string()), Error); }

TEST(MetricsTags, AreGroupedByTopic) {
  EXPECT_EQ(tag_of("train", "loss"), "loss/train");
  EXPECT_EQ(tag_of("validation", "loss"), "loss/validation");
  EXPECT_EQ(tag_of("validation", "bits_per_byte"), "loss/validation_bits_per_byte");
  EXPECT_EQ(tag_of("train", "grad_norm"), "optimizer/grad_norm");
  EXPECT_EQ(tag_of("train", "gpu_watts"), "gpu/watts");
  EXPECT_EQ(tag_of("train", "memory_peak"), "memory/peak");
  EXPECT_EQ(tag_of("train", "weight_decay"), "optimizer/weight_decay");
  EXPECT_EQ(tag_of("grad_norm", "blocks.3"), "optimizer/grad_norm/blocks.3");
  EXPECT_EQ(tag_of("attention_density", "blocks.3"), "attention/density/blocks.3");
  EXPECT_EQ(tag_of("attention_imbalance", "blocks.3"), "attention/imbalance/blocks.3");
  EXPECT_EQ(tag_of("train", "memory_peak"), "memory/peak");
  EXPECT_EQ(tag_of("train", "step_ms"), "speed/step_ms");
  EXPECT_EQ(tag_of("train", "tokens"), "data/tokens");
  EXPECT_EQ(tag_of("train", "loss/code"), "loss/train/code");
  EXPECT_EQ(tag_of("train", "share/code"), "data/share/code");
  EXPECT_EQ(tag_of("validation", "loss/code"), "loss/validation/code");
  EXPECT_EQ(tag_of("checkpoint", "seconds"), "checkpoint/seconds");
}

}  // namespace
}  // namespace ring
