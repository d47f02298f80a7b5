// Plans of steps with pipeline stages on a device that is not here.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "core/fields.h"
#include "engine/planner.h"
#include "engine/resolve.h"

namespace ring {
namespace {

constexpr double kFastLink = 1e12;  // bytes per second

PlannedStep plan_of_stages(const std::vector<std::string>& more, double link_bytes_per_second = kFastLink,
                           std::size_t budget = std::size_t{64} << 30) {
  Config c;
  override_config(
      c, {"data.path=none", "train.steps=10", "train.batch_size=16", "train.micro_batch=1", "model.vocab_size=1024",
          "model.context=2048", "model.layers=8", "model.width=512", "model.heads=8", "model.tied_embeddings=false"});
  PlanRequest q;
  q.config = resolve_config(c, c.model.vocab_size, 1, Backend::cuda, false);
  override_config(q.config, {"parallel.pp=4", "parallel.dp=2"});
  override_config(q.config, more);
  q.world = 8;
  q.rates = shipped_rates("h100", 2);
  q.rates.link_bytes_per_second = link_bytes_per_second;
  q.budget = budget;
  return plan_step(q).value();
}

std::string division_setting(const std::vector<std::int64_t>& blocks) {
  std::string division;
  for (const std::int64_t n : blocks) division += str(division.empty() ? "" : ",", n);
  return str("parallel.pp_division=[", division, "]");
}

TEST(PlannedStages, ShardTheirGradients) {
  const PlannedStep one = plan_of_stages({"parallel.zero=1"}), two = plan_of_stages({"parallel.zero=2"});
  const auto shard = static_cast<double>(two.gradients - two.gradient_buffers);
  EXPECT_NEAR(shard, static_cast<double>(one.gradients) / 2, 0.01 * shard);
}

// Stages are divided by FLOPs. By predicted times the division may be better, and a bad one certainly is not the best.
TEST(PlannedStages, ABetterDivisionIsFoundByPredictedTimes) {
  const PlannedStep bad = plan_of_stages({"parallel.pp_division=[4,2,1,1]"});
  ASSERT_EQ(bad.better_division.size(), 4u);
  EXPECT_GT(bad.stage_seconds[0], bad.stage_seconds[2]);
  EXPECT_EQ(std::accumulate(bad.better_division.begin(), bad.better_division.end(), 0), 8);
  const PlannedStep good = plan_of_stages({division_setting(bad.better_division)});
  EXPECT_TRUE(good.better_division.empty());
  EXPECT_LT(good.seconds(), bad.seconds());
}

// Two stages exchange messages that take a third of a micro-batch. 1F1B waits for each of them, and eager 1F1B waits
// only for the first and the last, but its first stage holds three micro-batches instead of two.
TEST(PlannedStages, EagerOrderHidesMessagesForTheMemoryOfAMicroBatch) {
  const std::vector<std::string> shape = {"parallel.pp=2", "parallel.dp=4", "train.batch_size=64"};
  const auto plan = [&](const char* order, double rate) {
    std::vector<std::string> all = shape;
    all.push_back(str("parallel.pp_order=", order));
    return plan_of_stages(all, rate);
  };
  constexpr double kMicroBatches = 16;
  const PlannedStep fast = plan("1f1b", 0);  // messages take no time
  EXPECT_EQ(fast.message_waits, 0);
  const double third = fast.stage_seconds[0] / kMicroBatches / 3;
  const double bytes = 2048 * 512 * 2;  // a hidden state in bf16
  const PlannedStep plain = plan("1f1b", bytes / third), eager = plan("eager_1f1b", bytes / third);
  const double message = plain.stage_message_seconds;
  EXPECT_GT(message, third);
  EXPECT_LT(message, 1.4 * third) << "the rate of the link, and its latency";
  EXPECT_NEAR(plain.seconds(), fast.seconds() + kMicroBatches * message, 2 * message);
  EXPECT_NEAR(eager.seconds(), fast.seconds() + 2 * message, message);
  EXPECT_NEAR(plain.message_waits, 1 - fast.seconds() / plain.seconds(), 0.01);
  EXPECT_EQ(plain.eager_message_waits.value(), eager.message_waits);
  EXPECT_FALSE(eager.eager_message_waits.has_value());
  EXPECT_LT(eager.message_waits, 0.2 * plain.message_waits);
  EXPECT_EQ(eager.bubble, plain.bubble);
  EXPECT_GT(static_cast<double>(eager.stage_peaks[0]), static_cast<double>(plain.stage_peaks[0]) + 4 * bytes);
  // The last stage holds no more activations than with 1F1B, but up to two more hidden states, which arrive earlier.
  EXPECT_LE(static_cast<double>(eager.stage_peaks[1]), static_cast<double>(plain.stage_peaks[1]) + 2 * bytes);
}

// Early stages hold more micro-batches, so a division that gives them more blocks may not fit.
TEST(PlannedStages, ABetterDivisionFitsIntoMemory) {
  const std::vector<std::string> late = {"parallel.pp_division=[1,1,2,4]", "train.recompute=none"};
  const PlannedStep slow = plan_of_stages(late);
  ASSERT_FALSE(slow.better_division.empty());
  const PlannedStep fast = plan_of_stages({division_setting(slow.better_division), "train.recompute=none"});
  const std::size_t small = std::ranges::max(slow.stage_peaks), large = std::ranges::max(fast.stage_peaks);
  ASSERT_LT(small, large);
  EXPECT_TRUE(plan_of_stages(late, kFastLink, large - 1).better_division.empty());
  EXPECT_EQ(plan_of_stages(late, kFastLink, large).better_division, slow.better_division);
}

}  // namespace
}  // namespace ring
