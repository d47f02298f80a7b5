// Plans within a given host memory (plan --host).
#include <gtest/gtest.h>

#include "engine/layouts.h"
#include "engine/rates.h"
#include "engine/resolve.h"

namespace ring {
namespace {

PlanRequest with_outer_optimizer() {
  Config c;
  override_config(c, {"data.path=none", "train.steps=10", "train.batch_size=1", "train.micro_batch=1",
                      "train.recompute=none", "model.vocab_size=50304", "model.context=2048", "model.layers=4",
                      "model.width=512", "model.heads=8", "model.positions=rope", "parallel.local_steps=30"});
  PlanRequest q{.budget = std::size_t{64} << 30, .rates = shipped_rates("h100", 2)};
  q.config = resolve_config(c, c.model.vocab_size, 1, Backend::cuda, false);
  q.config.train.activation_offload_bytes = q.host = std::int64_t{64} << 30;
  return q;
}

// Activations that are offloaded and the outer optimizer share the host memory, also if the states stay on the device.
TEST(HostMemoryPlans, TheOuterOptimizerLeavesLessHostMemoryForActivations) {
  PlanRequest q = with_outer_optimizer();
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

}  // namespace
}  // namespace ring
