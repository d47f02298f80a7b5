#include "tests/parallel/training.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "comm/gloo/gloo.h"
#include "core/check.h"

namespace ring::test {
namespace {

class DistTraining : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

// Replicas share the batch: every number is close to that of one process.
TEST_F(DistTraining, ReplicasReachWhatOneProcessDoes) {
  TrainingOptions options;
  options.overrides = {"train.micro_batch=2", "model.dropout=0.1", "model.attention_dropout=0.1"};
  const Training one = train_on_ranks(options);
  ASSERT_EQ(one.errors, "");
  EXPECT_LT(one.losses.back(), one.losses.front());
  EXPECT_TRUE(same_bits(one, train_on_ranks(options)));
  for (const int ranks : {2, 4}) {
    options.ranks = ranks;
    const Training many = train_on_ranks(options);
    ASSERT_EQ(many.errors, "");
    EXPECT_LT(largest_loss_difference(one, many), 1e-5);
    EXPECT_LT(largest_difference(one, many), 1e-3);
    EXPECT_TRUE(same_bits(many, train_on_ranks(options)));
  }
}

// Returns the names and contents of a checkpoint's files.
std::map<std::string, std::string> files_of(const std::filesystem::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    std::ostringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    files[entry.path().filename().string()] = text.str();
  }
  return files;
}

// Shards, hashes and counters are those of the snapshot's step, although training continued and the writing thread
// communicated with other ranks.
TEST_F(DistTraining, ASnapshotIsWrittenWhileTheNextStepsRun) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / str("ringmaster-snapshot-", getpid());
  TrainingOptions options;
  options.ranks = 2;
  options.steps = 2;
  options.steps_behind = 4;
  options.verify_order = true;
  for (const int zero : {0, 3}) {
    options.overrides = {str("parallel.zero=", zero), zero ? "optimizer.offload=states" : "optimizer.offload=none",
                         "optimizer.offload_chunk_bytes=10000"};
    options.save = (folder / std::to_string(zero)).string();
    const Training trained = train_on_ranks(options);
    ASSERT_EQ(trained.errors, "");
    const auto at_once = files_of(trained.checkpoint);
    EXPECT_EQ(at_once.size(), 3u);  // two shards and the manifest
    EXPECT_EQ(files_of(options.save + "-behind/step-000000002"), at_once) << "zero " << zero;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ring::test
