// A trainer's steps in planned memory.

#include <gtest/gtest.h>

#include <algorithm>

#include "bench/step.h"
#include "core/devices.h"

namespace ring {
namespace {

Config small_model(DeviceChoice device) {
  Config c;
  c.run.device = device;
  c.run.threads = 1;
  c.model.context = 64;
  c.model.layers = 4;
  c.model.width = 64;
  c.model.heads = 2;
  c.model.mlp_width = 192;
  c.train.batch_size = 4;
  c.train.micro_batch = 2;
  c.train.steps = 8;
  return c;
}

void expect_planned_steps(Recompute recompute, DeviceChoice device) {
  Config config = small_model(device);
  config.train.recompute = recompute;
  StepBenchmark bench(config);
  Trainer& trainer = bench.trainer();
  const Allocator& memory = *bench.exec().stream.allocator();
  const std::size_t lasting = memory.stats().in_use;
  // The first step measures kernels on a device; the next two are alike.
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(trainer.step().accepted);
  const StepArena& arena = trainer.arena();
  ASSERT_TRUE(arena.planned());
  const std::uint64_t generation = arena.generation(), waits = host_waits();
  std::uint64_t finishes = 0;
  for (int i = 0; i < 4; ++i) {
    trainer.launch();
    EXPECT_EQ(host_waits() - waits, finishes) << "the host waited in step " << i;
    trainer.finish();
    finishes = host_waits() - waits;
  }
  EXPECT_EQ(arena.generation(), generation);
  EXPECT_EQ(arena.fallbacks(), 0u);
  EXPECT_EQ(arena.from_upstream(), 0u);
  const MemoryPlan plan = arena.plan();
  EXPECT_LE(static_cast<double>(plan.bytes), 1.03 * static_cast<double>(plan.live_peak));
  const MemoryStats s = memory.stats();
  EXPECT_GE(s.peak, lasting + plan.live_peak / 2);
  EXPECT_LE(s.peak, s.reserved);
  std::size_t held = 0;
  for (const PhaseMemory& p : s.phases) held += p.held;
  EXPECT_LE(held, s.in_use);
  for (const ScopeId& phase :
       {ScopeId{ScopeKind::parameters}, ScopeId{ScopeKind::optimizer_states}, ScopeId{ScopeKind::inputs},
        block_scope(3), ScopeId{ScopeKind::loss_head}, ScopeId{ScopeKind::backward}})
    EXPECT_TRUE(std::any_of(s.phases.begin(), s.phases.end(), [&](const PhaseMemory& p) { return p.phase == phase; }))
        << phase;
}

TEST(StepMemory, EveryBlockOfAStepHasItsPlace) {
  for (const Recompute r : {Recompute::none, Recompute::attention, Recompute::mlp, Recompute::block})
    expect_planned_steps(r, DeviceChoice::cpu);
}

TEST(GpuStepMemory, EveryBlockOfAStepHasItsPlace) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  for (const Recompute r : {Recompute::none, Recompute::attention, Recompute::mlp, Recompute::block})
    expect_planned_steps(r, DeviceChoice::cuda);
}

TEST(StepMemory, GoesBackToTheStreamWithItsTrainer) {
  std::shared_ptr<Allocator> upstream;
  {
    StepBenchmark bench(small_model(DeviceChoice::cpu));
    for (int i = 0; i < 4; ++i) bench.trainer().step();
    upstream = bench.trainer().arena().upstream();
    EXPECT_NE(bench.exec().stream.allocator(), upstream);
    EXPECT_GT(upstream->stats().in_use, 0u);
  }
  EXPECT_EQ(upstream->stats().in_use, 0u);
}

}  // namespace
}  // namespace ring
