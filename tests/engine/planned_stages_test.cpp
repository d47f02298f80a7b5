// Plans of steps with pipeline stages on a device that is not here.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/fields.h"
#include "engine/planner.h"
#include "engine/resolve.h"

namespace ring {
namespace {

PlannedStep plan_of_stages(const std::vector<std::string>& more) {
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
  q.budget = std::size_t{64} << 30;
  return plan_step(q).value();
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
  std::string division;
  std::int64_t blocks = 0;
  for (const std::int64_t n : bad.better_division) {
    blocks += n;
    division += str(division.empty() ? "" : ",", n);
  }
  EXPECT_EQ(blocks, 8);
  const PlannedStep good = plan_of_stages({str("parallel.pp_division=[", division, "]")});
  EXPECT_TRUE(good.better_division.empty());
  EXPECT_LT(good.seconds(), bad.seconds());
}

}  // namespace
}  // namespace ring
