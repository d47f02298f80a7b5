#include "tests/parallel/training.h"

#include <gtest/gtest.h>

#include "comm/gloo/gloo.h"

namespace ring::test {
namespace {

class DistTraining : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

// Replicas share the batch: every number stays near that of one process.
TEST_F(DistTraining, ReplicasReachWhatOneProcessDoes) {
  TrainingOptions options;
  options.overrides = {"train.micro_batch=2", "model.dropout=0.1"};
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

}  // namespace
}  // namespace ring::test
