// Each kind of file system call of a run may fail, one call at a time and anywhere: the error is named, and either the
// run continues or its next start does.

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "core/exit_code.h"
#include "tests/launcher/training.h"

namespace ring {
namespace {

using test::read_file;

struct Call {
  const char *name, *error, *text;
  int stride = 1;  // tries every stride-th call: the writes of tensors are all alike
};
void PrintTo(const Call& c, std::ostream* out) { *out << c.name; }

// A run that writes reports, checkpoints, and snapshots that the launcher keeps.
class DistTrainingIo : public test::TrainingRuns, public testing::WithParamInterface<Call> {
 protected:
  static constexpr int kAtOnce = 4;
  static constexpr const char* kIncomplete = "metrics are incomplete";

  pid_t start_run(const std::string& name, const std::string& fault = "", const std::string& more = "") const {
    std::vector<std::string> words = launch(1, name, "train.steps=4");
    if (!fault.empty()) words.insert(words.begin() + 1, {"--inject", fault});
    words.insert(words.end(), {"checkpoint.interval=2", "checkpoint.memory_interval=1", "model.layers=1"});
    if (!more.empty()) words.push_back(more);
    return start(words, {}, (name + ".log").c_str());
  }
  std::string log(const std::string& name) const { return read_file(dir_ / (name + ".log")); }
  bool says(const std::string& name, const std::string& text) const {
    return log(name).find(text) != std::string::npos;
  }
  // Returns the losses of a run. A metrics line that could not be written is empty.
  std::vector<double> losses(const std::string& name) const {
    std::ifstream lines(dir_ / name / "metrics.jsonl");
    std::vector<double> found;
    for (std::string line; std::getline(lines, line);)
      if (const auto record = nlohmann::json::parse(line, nullptr, false); record.contains("loss"))
        found.push_back(record["loss"].get<double>());
    return found;
  }
  // Expects the losses and checkpoints of "calm", except for a metrics line that could not be written.
  void expect_like_calm(const std::string& name) const {
    std::vector<double> calm = losses("calm"), found = losses(name);
    if (says(name, kIncomplete)) {
      EXPECT_GE(found.size() + 1, calm.size()) << log(name);
      std::erase_if(calm, [&](double loss) { return std::ranges::count(found, loss) == 0; });
    }
    EXPECT_EQ(found, calm) << log(name);
    EXPECT_TRUE(shard(name) == shard("calm")) << log(name);
  }
  // Before its first step a run may be refused; then the same command must train it.
  void expect_recovery(const std::string& name, int code) const {
    EXPECT_TRUE(says(name, GetParam().text)) << "not named: " << log(name);
    if (code != 0) {
      EXPECT_EQ(code, kExitError) << log(name);
      EXPECT_FALSE(says(name, "step 1/4")) << "steps had begun: " << log(name);
      EXPECT_EQ(wait(start_run(name)), 0) << log(name);
    }
    expect_like_calm(name);
  }
};

INSTANTIATE_TEST_SUITE_P(
    Calls, DistTrainingIo,
    testing::Values(Call{"create", "ENOSPC", "No space left on device"}, Call{"read", "EIO", "Input/output error"},
                    Call{"reserve", "ENOSPC", "No space left on device"},
                    Call{"write", "ENOSPC", "No space left on device", 8}, Call{"resize", "EIO", "Input/output error"},
                    Call{"fsync", "EIO", "Input/output error"}, Call{"rename", "EIO", "Input/output error"}));

TEST_P(DistTrainingIo, AFailedCallIsNamedAndTheRunContinues) {
  ASSERT_EQ(wait(start_run("calm")), 0) << log("calm");
  int struck = 0;
  for (bool more = true; more;) {
    std::vector<std::pair<std::string, pid_t>> runs;
    for (int i = 0; i < kAtOnce; ++i) {
      const int nth = 1 + (struck + i) * GetParam().stride;
      const std::string name = "nth" + std::to_string(nth);
      runs.emplace_back(name,
                        start_run(name, str("1:io@call=", GetParam().name, ",nth=", nth, ",error=", GetParam().error)));
    }
    for (const auto& [name, pid] : runs) {
      const int code = wait(pid);
      more &= says(name, ": at a call of ");
      if (!says(name, ": at a call of ")) continue;
      ++struck;
      expect_recovery(name, code);
    }
  }
  EXPECT_GT(struck, 0);
}

using DistTrainingMetrics = DistTrainingIo;
INSTANTIATE_TEST_SUITE_P(Calls, DistTrainingMetrics,
                         testing::Values(Call{"write", "ENOSPC", "No space left on device"}));

TEST_P(DistTrainingMetrics, ALostLineIsNamed) {
  ASSERT_EQ(wait(start_run("calm")), 0) << log("calm");
  const std::string fault = "1:io@call=write,phase=finish,step=2,error=ENOSPC";  // no other writes happen then
  ASSERT_EQ(wait(start_run("r", fault, "checkpoint.interval=0")), 0) << log("r");
  EXPECT_TRUE(says("r", "metrics.jsonl: No space left on device")) << log("r");
  EXPECT_TRUE(says("r", kIncomplete)) << log("r");
  EXPECT_EQ(losses("r").size() + 1, losses("calm").size());
}

}  // namespace
}  // namespace ring
