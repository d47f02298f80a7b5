// Steps of a trainer in planned memory.

#include <gtest/gtest.h>

#include <algorithm>

#include "bench/step.h"
#include "core/devices.h"
#include "engine/memory_check.h"
#include "model/scopes.h"

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

// The activations are large enough to be offloaded.
Config offloading_model(DeviceChoice device) {
  Config c = small_model(device);
  c.model.context = 256;
  c.train.activation_offload = Switch::on;
  return c;
}

void expect_planned_steps(Config config) {
  StepBenchmark bench(config);
  Trainer& trainer = bench.trainer();
  const Allocator& memory = *bench.exec().stream.allocator();
  const std::size_t lasting = memory.stats().in_use;
  // The first step measures kernels on a device; the next two steps are equal.
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(trainer.step().accepted);
  const StepArena& arena = trainer.arena();
  ASSERT_TRUE(arena.has_slab());
  const std::uint64_t generation = arena.generation(), waits = host_wait_count();
  std::uint64_t finishes = 0;
  for (int i = 0; i < 4; ++i) {
    trainer.launch();
    EXPECT_EQ(host_wait_count() - waits, finishes) << "the host waited in step " << i;
    trainer.finish();
    finishes = host_wait_count() - waits;
  }
  if (const HostOffload* offload = trainer.offload()) {
    EXPECT_GT(offload->bytes().moved, 0u);
  }
  EXPECT_EQ(arena.generation(), generation);
  EXPECT_EQ(arena.num_fallbacks(), 0u);
  EXPECT_EQ(arena.num_upstream_blocks(), 0u);
  const MemoryPlan plan = arena.plan();
  const double gaps = trainer.offload() ? 1.1 : 1.03;  // fetched activations fragment the slab
  EXPECT_LE(static_cast<double>(plan.bytes), gaps * static_cast<double>(plan.live_peak));
  const MemoryStats s = memory.stats();
  EXPECT_GE(s.peak, lasting + plan.live_peak / 2);
  EXPECT_LE(s.peak, s.reserved);
  std::size_t held = 0;
  for (const PhaseMemory& p : s.phases) held += p.held;
  EXPECT_LE(held, s.in_use);
  for (const ScopeId& phase : {ScopeId{scopes::parameters}, ScopeId{scopes::optimizer_states}, ScopeId{scopes::inputs},
                               block_scope(3), ScopeId{scopes::loss_head}, ScopeId{scopes::backward}})
    EXPECT_TRUE(std::any_of(s.phases.begin(), s.phases.end(), [&](const PhaseMemory& p) { return p.phase == phase; }))
        << phase;
}

// The states are transferred in about twenty chunks.
Config state_offloading_model(DeviceChoice device) {
  Config c = small_model(device);
  c.optimizer.offload = StateOffload::all;
  c.optimizer.offload_chunk_bytes = 100'000;
  return c;
}

void expect_planned_steps(DeviceChoice device) {
  for (Config config : {small_model(device), offloading_model(device), state_offloading_model(device)})
    for (const RecomputeChoice r : {RecomputeChoice::none, RecomputeChoice::attention, RecomputeChoice::mlp,
                                    RecomputeChoice::block, RecomputeChoice::full}) {
      config.train.recompute = r;
      expect_planned_steps(config);
    }
}

TEST(StepMemory, EveryBlockOfAStepHasItsPlace) { expect_planned_steps(DeviceChoice::cpu); }

TEST(GpuStepMemory, EveryBlockOfAStepHasItsPlace) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  expect_planned_steps(DeviceChoice::cuda);
}

// Activations of two blocks are on the device at a time; those of seven blocks are offloaded.
void expect_smaller_plan(DeviceChoice device) {
  const auto plan = [&](bool offload, std::size_t& moved, std::size_t& host) {
    Config c = offloading_model(device);
    c.model.layers = 8;
    c.train.activation_offload = offload ? Switch::on : Switch::off;
    StepBenchmark bench(c);
    for (int i = 0; i < 4; ++i) bench.trainer().step();
    const HostOffload* offloaded = bench.trainer().offload();
    host = offloaded ? offloaded->host_bytes() : 0;
    for (int i = 0; i < 4; ++i) bench.trainer().step();
    moved = offloaded ? offloaded->bytes().moved : 0;
    EXPECT_EQ(offloaded ? offloaded->host_bytes() : 0, host) << "the same host memory serves every step";
    if (offloaded) {
      EXPECT_EQ(offloaded->bytes().late, 0u);
    }
    return bench.trainer().arena().plan().live_peak;
  };
  std::size_t moved = 0, host = 0;
  const std::size_t kept = plan(false, moved, host), less = plan(true, moved, host);
  EXPECT_GE(host, moved);
  EXPECT_LE(less + moved / 7 * 5, kept);
}

TEST(StepMemory, WhatIsOffloadedLeavesThePlan) { expect_smaller_plan(DeviceChoice::cpu); }

TEST(StepMemory, OffloadingKeepsItsLimitAndThatOfTheHost) {
  Config c = offloading_model(DeviceChoice::cpu);
  c.train.activation_offload_bytes = 1'000'000;
  StepBenchmark bench(c);
  bench.trainer().step();
  EXPECT_GT(bench.trainer().offload()->bytes().moved, 800'000u);
  EXPECT_GT(bench.trainer().offload()->bytes().stayed, 0u);
  EXPECT_LE(bench.trainer().offload()->host_bytes(), 1'000'000u);
  const std::uint64_t most = tightest_bound(memory_bounds()).total;
  Config resolved = bench.config();
  for (const std::int64_t asked : {std::int64_t{0}, std::int64_t{1} << 50}) {
    resolved.train.activation_offload_bytes = asked;
    EXPECT_GT(activation_room(resolved, bench.mesh()), 1'000'000u);
    EXPECT_LT(activation_room(resolved, bench.mesh()), most);
  }
}

TEST(GpuStepMemory, WhatIsOffloadedLeavesThePlan) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  expect_smaller_plan(DeviceChoice::cuda);
}

// Returns the largest number of values of 4 bytes that a step of one block needs.
std::int64_t values_at_peak(std::int64_t tokens, Mlp mlp, std::int64_t mlp_width, std::int64_t chunk) {
  Config c = small_model(DeviceChoice::cpu);
  c.model.layers = 1;
  c.model.context = tokens;
  c.model.mlp = mlp;
  c.model.mlp_width = mlp_width;
  c.train.batch_size = c.train.micro_batch = 1;
  c.train.recompute = RecomputeChoice::block;
  c.train.mlp_chunk = chunk;
  StepBenchmark bench(c);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(bench.trainer().step().accepted);
  return static_cast<std::int64_t>(bench.trainer().arena().plan().live_peak / sizeof(float));
}

// docs/memory.md gives the workspace per token as a multiple of mlp_width, and none of it with chunks.
TEST(StepMemory, ChunksOfAnMlpDoNotGrowWithTheSequence) {
  constexpr std::int64_t width = 512;
  for (const auto& [mlp, hidden] :
       {std::pair{Mlp::swiglu, 5}, std::pair{Mlp::gelu_tanh, 2}, std::pair{Mlp::relu2, 3}}) {
    const auto per_token = [mlp = mlp](std::int64_t mlp_width, std::int64_t chunk) {
      return (values_at_peak(256, mlp, mlp_width, chunk) - values_at_peak(128, mlp, mlp_width, chunk)) / 128;
    };
    EXPECT_EQ(per_token(2 * width, 0) - per_token(width, 0), hidden * width);
    EXPECT_EQ(per_token(2 * width, 8), per_token(width, 8));
  }
}

TEST(StepMemory, IsReturnedToTheStreamWithItsTrainer) {
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
