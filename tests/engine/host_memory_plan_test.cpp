// Plans within a given host memory (plan --host).
#include <gtest/gtest.h>

#include "engine/layouts.h"
#include "engine/rates.h"
#include "engine/resolve.h"

namespace ring {
namespace {

PlanRequest host_plan_request(const std::vector<std::string>& settings) {
  Config c;
  override_config(c, {"data.path=none", "train.steps=10", "train.batch_size=1", "train.micro_batch=1",
                      "train.recompute=none", "model.vocab_size=50304", "model.context=2048", "model.layers=4",
                      "model.width=512", "model.heads=8", "model.positions=rope"});
  override_config(c, settings);
  PlanRequest q{.budget = std::size_t{64} << 30, .rates = shipped_rates("h100", 2)};
  q.config = resolve_config(c, c.model.vocab_size, 1, Backend::cuda, false);
  q.config.train.activation_offload_bytes = q.host = std::int64_t{64} << 30;
  return q;
}

// Activations that are offloaded and the outer optimizer share the host memory, also if the states stay on the device.
TEST(HostMemoryPlans, TheOuterOptimizerLeavesLessHostMemoryForActivations) {
  PlanRequest q = host_plan_request({"parallel.local_steps=30"});
  const auto roomy = plan_step(q);
  ASSERT_TRUE(roomy);
  q.budget = roomy->peak - roomy->inside_step / 8;
  const Layouts some = try_layouts(q);
  ASSERT_EQ(some.fit.size(), 1u) << some.error;
  const PlannedStep& p = some.fit[0];
  ASSERT_EQ(p.config.optimizer.offload, StateOffload::none);
  const std::size_t activations = p.host - p.host_lasting;
  EXPECT_GT(activations, 0u);
  EXPECT_GT(p.host_lasting, activations);
  q.host = static_cast<std::int64_t>(p.host);
  ASSERT_EQ(try_layouts(q).fit.size(), 1u);
  q.host = static_cast<std::int64_t>(p.host_lasting + activations / 2);
  for (const PlannedStep& less : try_layouts(q).fit) EXPECT_LE(less.host, p.host_lasting + activations / 2);
  q.budget = roomy->peak;
  EXPECT_EQ(try_layouts(q).fit.size(), 1u) << "without activations on the host, there is enough memory";
  EXPECT_GT(longest_context(q).tokens, 0);
  q.host = static_cast<std::int64_t>(p.host_lasting / 2);
  const Layouts none = try_layouts(q);
  EXPECT_TRUE(none.fit.empty());
  EXPECT_NE(none.error.find("states and weights need "), std::string::npos) << none.error;
  EXPECT_EQ(longest_context(q).tokens, 0);
}

// Each micro-batch waits for two copies of the weights if the bus is slow, and does not wait if it is fast.
TEST(HostMemoryPlans, WeightsOnTheHostSaveMemoryAndTakeTimeOnASlowBus) {
  PlanRequest q = host_plan_request({"train.batch_size=8", "train.micro_batch=2", "model.tied_embeddings=false"});
  const auto planned = [&](StateOffload offload, double rate) {
    q.config.optimizer.offload = offload;
    q.config.optimizer.offload_staging_bytes = 0;
    q.rates.host_bytes_per_second = rate;
    return plan_step(q);
  };
  const double n = static_cast<double>(plan_step(q)->optimizer_states) / 8, slow = 1e7, fast = 1e15;
  const auto all = planned(StateOffload::all, slow), weights = planned(StateOffload::weights, slow);
  ASSERT_TRUE(all && weights);
  EXPECT_EQ(static_cast<double>(all->host), 12 * n);
  EXPECT_EQ(static_cast<double>(weights->host), 14 * n);
  EXPECT_GT(weights->weight_buffers, 0u);
  EXPECT_EQ(weights->weights, weights->weight_buffers);
  EXPECT_EQ(static_cast<double>(all->weights), 2 * n);
  // Forwards do not wait for the embedding, which is the first part. Backwards read neither the embedding nor the head.
  const double table = 50304 * 512, passes = 4 * ((n - table) + (n - 2 * table));
  const double more = 2 * (n + passes) / slow;  // the update also copies the weights
  EXPECT_NEAR(weights->seconds() - all->seconds(), more, 0.02 * more);
  EXPECT_NEAR(planned(StateOffload::weights, fast)->seconds(), planned(StateOffload::all, fast)->seconds(), 1e-6);
}

}  // namespace
}  // namespace ring
