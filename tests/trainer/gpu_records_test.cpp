// Records of runs on a GPU, which computes a step while the host queues the next one.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/stream.h"
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

class GpuRecords : public Runs {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
    Runs::SetUp();
  }
};

TEST_F(GpuRecords, CountTheTokensUpToTheirStep) {
  const std::vector<std::string> settings = {"run.device=cuda", "run.tuning=" + path("tuning.yaml"), "model.context=64",
                                             "train.steps=5", "train.batch_size=2"};
  ASSERT_EQ(run_process(train("counted", settings)).code, 0);
  std::ifstream file(path("counted/metrics.jsonl"));
  std::int64_t records = 0;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.at("group") != "train") continue;
    ++records;
    EXPECT_EQ(json.at("tokens"), json.at("step").get<std::int64_t>() * 2 * 64);
  }
  EXPECT_EQ(records, 5);
}

}  // namespace
}  // namespace ring::test
