// Memory that a dry step predicts, compared with real steps, and plans of activations that keep a budget.

#include "engine/dry_step.h"

#include <gtest/gtest.h>

#include "autograd/ops.h"
#include "bench/step.h"
#include "comm/mesh/mesh.h"
#include "core/fields.h"
#include "core/step_arena.h"
#include "engine/activation_fit.h"
#include "engine/devices.h"
#include "engine/memory_check.h"
#include "engine/memory_choice.h"
#include "engine/rates.h"
#include "engine/resolve.h"
#include "model/architectures.h"
#include "tests/bench/refusing.h"

namespace ring {
namespace {

struct Case {
  const char* name;
  std::vector<const char*> settings;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

Config dry_config(const std::vector<const char*>& settings) {
  Config c;
  std::vector<std::string> overrides = {"run.device=cpu",       "run.threads=1",       "model.context=256",
                                        "model.layers=6",       "model.width=128",     "model.heads=4",
                                        "train.batch_size=4",   "train.micro_batch=2", "train.steps=8",
                                        "train.recompute=none", "data.path=random"};
  overrides.insert(overrides.end(), settings.begin(), settings.end());
  override_config(c, overrides);
  return c;
}

class DrySteps : public testing::TestWithParam<Case> {};

TEST_P(DrySteps, TakeWhatStepsTake) {
  StepBenchmark bench(dry_config(GetParam().settings));
  Trainer& trainer = bench.trainer();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(trainer.step().accepted);
  ASSERT_TRUE(trainer.arena().has_slab());
  const DryStep dry = dry_step(bench.config(), 1, trainer.memory().fit.plan);
  const double slab = static_cast<double>(trainer.arena().plan().bytes);
  EXPECT_NEAR(static_cast<double>(dry.plan.bytes), slab, 0.03 * slab);
  const MemoryStats real = bench.exec().stream.allocator()->stats();
  const double peak = static_cast<double>(real.in_use) + slab;  // between steps the slab is not in use
  EXPECT_NEAR(static_cast<double>(dry.peak()), peak, 0.03 * peak);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, DrySteps,
    testing::Values(
        Case{"gpt2", {}}, Case{"wide", {"model.width=256", "model.heads=4"}},
        Case{"long", {"model.context=1024", "train.micro_batch=1"}},
        Case{"llama", {"model.norm=rms", "model.positions=rope", "model.mlp=swiglu", "model.biases=none"}},
        Case{"qwen", {"model.norm=rms", "model.positions=rope", "model.mlp=swiglu", "model.qk_norm=true"}},
        Case{"grouped", {"model.kv_heads=1"}}, Case{"large_vocabulary", {"model.vocab_size=20000"}},
        Case{"window", {"model.attention.kind=window", "model.attention.window=64"}},
        Case{"attention_again", {"train.recompute=attention"}}, Case{"mlp_again", {"train.recompute=mlp"}},
        Case{"states_on_the_host", {"optimizer.offload=states", "optimizer.offload_staging_bytes=0"}},
        Case{"in_small_chunks",
             {"optimizer.offload=states", "optimizer.offload_chunk_bytes=1e5", "optimizer.offload_staging_bytes=0"}},
        Case{"in_many_chunks",
             {"optimizer.offload=states", "optimizer.offload_chunk_bytes=1e5", "optimizer.offload_staging_bytes=1e6"}},
        Case{"fp8_moments", {"optimizer.moments=fp8"}},
        Case{"frozen_in_fp8",
             {"train.linears=fp8_tensor", "optimizer.groups=[{match: ['blocks.[0-3].*'], frozen: true}]"}},
        Case{"fp8_moments_on_the_host",
             {"optimizer.moments=fp8", "optimizer.offload=states", "optimizer.offload_staging_bytes=0"}},
        Case{"weights_on_the_host", {"optimizer.offload=weights", "optimizer.offload_staging_bytes=0"}},
        Case{"block_again", {"train.recompute=block"}}, Case{"full_again", {"train.recompute=full"}},
        Case{"full_again_in_chunks", {"train.recompute=full", "train.mlp_chunk=100"}},
        Case{"averaged", {"train.ema=0.999"}}, Case{"two_threads", {"run.threads=2"}}),
    [](const auto& info) { return std::string(info.param.name); });

// The device is a GPU that this machine need not have: bf16 weights [2 bytes], and masters [4] and both moments [8] on
// the device or on the host.
TEST(DryStep, StatesOnTheHostLeaveTheDevice) {
  Config c = dry_config({"run.device=cuda", "optimizer.offload_chunk_bytes=1048576"});
  c.model.vocab_size = 500;
  const auto dry = [&](StateOffload offload) {
    c.optimizer.offload = offload;
    const Config resolved = resolve_config(c, 500, 1, Backend::cuda, false);
    return dry_step(resolved, 1, ActivationPlan::uniform(c.model.layers, Recompute::none, false));
  };
  const DryStep none = dry(StateOffload::none), states = dry(StateOffload::states), all = dry(StateOffload::all);
  const std::size_t n = none.optimizer_states / 8, stages = 3;
  EXPECT_GT(n, 1'000'000u);
  EXPECT_EQ(none.weights, 6 * n);
  EXPECT_EQ(none.host_states, 0u);
  EXPECT_EQ(states.host_states, 8 * n);
  EXPECT_EQ(states.optimizer_states, stages << 20);
  EXPECT_EQ(none.lasting - states.lasting, 8 * n - (stages << 20));
  EXPECT_EQ(all.host_states, 12 * n);
  EXPECT_EQ(all.weights, 2 * n);
  EXPECT_LE(all.optimizer_states, stages << 20);
  EXPECT_GT(all.optimizer_states, (stages << 20) * 999 / 1000);  // 12 does not divide a chunk
  EXPECT_EQ(none.lasting - all.lasting, 12 * n - all.optimizer_states);
  for (const DryStep* d : {&states, &all}) EXPECT_EQ(d->plan.bytes, none.plan.bytes);
}

// There are fewer elements than are exchanged or compared at a time, so that the buffers hold all of them, in f32.
TEST(DryStep, AveragesAndWatchedStepsTakeDeviceMemory) {
  Config c = dry_config({"run.device=cuda"});
  c.model.vocab_size = 500;
  const auto dry = [&] {
    return dry_step(resolve_config(c, 500, 1, Backend::cuda, false), 1,
                    ActivationPlan::uniform(c.model.layers, Recompute::none, false));
  };
  const DryStep none = dry();
  const std::size_t n = none.optimizer_states / 8;
  ASSERT_LT(n, 1u << 22);
  c.train.ema = 0.99;
  const DryStep averaged = dry();
  EXPECT_EQ(averaged.weights - none.weights, 8 * n);
  EXPECT_EQ(averaged.lasting - none.lasting, 8 * n);
  c.train.diagnostics_interval = 10;
  EXPECT_EQ(dry().lasting - averaged.lasting, 4 * n);
  EXPECT_EQ(dry().plan.bytes, none.plan.bytes);
}

// On a GPU keys and values are bf16. Of two ranks with zigzag, rank 0 sends the keys of one of its two chunks, and the
// gradients of both chunks of rank 1; with gather, each rank sends all.
TEST(DryStep, SendsTheMessagesOfTheirType) {
  for (const std::string schedule : {"ring", "gather"})
    for (const std::string messages : {"exact", "bf16", "fp8"}) {
      Config c = dry_config({"run.device=cuda", "model.kv_heads=2", "parallel.cp=2", "parallel.cp_layout=zigzag"});
      override_config(c, {"parallel.cp_schedule=" + schedule, "parallel.cp_messages=" + messages});
      const DryStep dry = dry_step(resolve_config(c, 500, 2, Backend::cuda, false), 2,
                                   ActivationPlan::uniform(c.model.layers, Recompute::none, false));
      const std::size_t dim = 32, chunk = 2 * 256 / 4, calls = 6 * 2;  // calls: layers, micro-batches
      const std::size_t keys = messages == "fp8" ? dim + 1 : 2 * dim, gradients = (messages == "exact" ? 4 : 2) * dim;
      const std::size_t heads = 2 * 2;  // of keys and of values
      std::size_t exchanged = 0, gathered = 0;
      for (const DryTransfer& t : dry.transfers)
        if (t.transfer.group == "cp") (t.transfer.operation == "exchange" ? exchanged : gathered) += t.transfer.bytes;
      SCOPED_TRACE(schedule + ", " + messages);
      if (schedule == "ring") {
        EXPECT_EQ(exchanged, calls * heads * chunk * (2 * keys + 2 * gradients));
        EXPECT_EQ(gathered, 0u);
      } else {  // the bytes of collectives are those of all ranks
        const std::size_t rows = 2 * chunk, all = 2 * rows;
        EXPECT_EQ(exchanged, messages == "exact" ? 0u : calls * heads * rows * gradients);
        EXPECT_EQ(gathered, calls * heads * all * (2 * keys + (messages == "exact" ? gradients : 0)));
      }
    }
}

// Bytes of a block that ZeRO-3 gathers with this format, on a GPU: 2 per number, or, in a linear layer in FP8, 1 per
// number and 4 per scale, in rows of scales of 16 bytes.
std::size_t gathered_bytes(const Config& c, const std::string& format) {
  const std::unique_ptr<Model> model = make_model(c.model, vocab_padding(Backend::cuda));
  const std::vector<ModelPart> parts = model->parts();
  std::int64_t bytes = 0;
  for (const Param* p : parts[1].params) {
    if (!p->linear || format == "bf16") {
      bytes += 2 * p->shape.numel();
      continue;
    }
    const auto up = [](std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; };
    const std::int64_t rows = format == "fp8_tensor" ? 1 : up(p->shape[0], 128);
    bytes += p->shape.numel() + rows * 16 * (format == "fp8_tensor" ? 1 : up(up(p->shape[1], 128), 4));
  }
  return static_cast<std::size_t>(bytes);
}

TEST(DryStep, WeightsOfFp8LayersAreGatheredInHalfTheBytes) {
  Config c = dry_config({"run.device=cuda", "parallel.zero=3", "model.layers=4"});
  c.model.vocab_size = 500;
  std::vector<std::size_t> gathers, buffers, maxima;
  for (const char* format : {"bf16", "fp8_blocks", "fp8_tensor"}) {
    c.train.linears = format;
    const Config resolved = resolve_config(c, 500, 2, Backend::cuda, false);
    const DryStep dry = dry_step(resolved, 2, ActivationPlan::uniform(4, Recompute::none, false));
    const std::size_t bytes = gathered_bytes(resolved, format);
    const auto count = [&](std::string_view operation, std::size_t size) {
      return static_cast<std::size_t>(std::ranges::count_if(dry.transfers, [&](const DryTransfer& t) {
        return t.transfer.operation == operation && t.transfer.bytes == size;
      }));
    };
    gathers.push_back(count("broadcast", bytes));
    maxima.push_back(count("all_reduce", std::size_t{4} * 4 * 4));  // f32, of 4 weights in each of 4 blocks
    buffers.push_back(dry.weight_buffers);
  }
  EXPECT_GE(gathers[0], 6u) << "4 in the forward, and those that the backward does not find in the buffers";
  EXPECT_EQ(gathers, std::vector(3, gathers[0]));
  EXPECT_EQ(maxima, (std::vector<std::size_t>{0, 0, 1}));
  for (const std::size_t fp8 : {buffers[1], buffers[2]}) EXPECT_LT(fp8, buffers[0]);
}

// Returns the bytes that a block of a Llama of 1.2 billion parameters keeps for each 1024 tokens, without the FP8
// copies of its weights, whose size does not depend on the tokens.
double kept_by_block(const std::vector<std::string>& settings) {
  const auto kept = [&](const char* sequences) {
    Config c = dry_config({"run.device=cuda", "model.context=1024", "model.layers=3", "model.width=2048",
                           "model.heads=16", "model.kv_heads=16", "model.mlp=swiglu", "model.mlp_width=5632",
                           "model.norm=rms", "model.positions=rope", "model.biases=none"});
    override_config(c, settings);
    override_config(c, {str("train.micro_batch=", sequences)});
    const DryStep dry = dry_step(resolve_config(c, 500, 1, Backend::cuda, false), 1,
                                 ActivationPlan::uniform(3, Recompute::none, false));
    return static_cast<double>(dry.parts[2].kept);
  };
  return kept("2") - kept("1");
}

TEST(DryStep, GateAndUpInFp8AreKeptInHalfTheBytes) {
  const double bf16 = kept_by_block({});
  for (const char* format : {"train.linears=fp8_blocks", "train.linears=fp8_tensor"}) {
    SCOPED_TRACE(format);
    const double plain = kept_by_block({format}), rounded = kept_by_block({format, "train.swiglu_inputs=fp8"});
    EXPECT_NEAR(plain / bf16, 0.89, 0.01);
    EXPECT_LT(rounded / bf16, 0.75);
    const double elements = 1024.0 * 2 * 5632, scales = elements / 128 * 4;
    EXPECT_NEAR(plain - rounded, elements - scales, 1e-3 * elements);
  }
}

// Returns the smallest budget of which 96 % are at least that many bytes.
std::size_t budget_for(std::size_t bytes) {
  std::size_t all = bytes / 24 * 25;
  while (all - all / 25 < bytes) ++all;
  return all;
}

// offload_staging_bytes: auto takes what remains of 96 % of the budget, in whole chunks, and at most the bytes that are
// transferred.
TEST(DryStep, WhatAStepLeavesIsForStatesOnTheirWay) {
  Config config = dry_config({"optimizer.offload=states", "optimizer.offload_chunk_bytes=100000",
                              "optimizer.offload_staging_bytes=0", "model.vocab_size=1000", "train.recompute=auto"});
  const std::size_t least = StepBenchmark(config).trainer().memory().fit.peak, chunk = 100'000 / 128 * 128;
  config.optimizer.offload_staging_bytes = kAutoStaging;
  for (const std::size_t more : {std::size_t{0}, chunk - 1, chunk, 10 * chunk + 5, std::size_t{1} << 30}) {
    config.train.memory_budget = static_cast<double>(budget_for(least + more));
    StepBenchmark bench(config);
    Trainer& trainer = bench.trainer();
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(trainer.step().accepted);
    const ActivationFit& fit = trainer.memory().fit;
    const DryStep dry = dry_step(bench.config(), 1, fit.plan);
    EXPECT_EQ(dry.optimizer_states, 3 * chunk);
    const std::size_t all = (dry.host_states + chunk - 1) / chunk;
    EXPECT_EQ(fit.staging, chunk * std::min(3 + more / chunk, all)) << more;
    EXPECT_EQ(fit.peak, dry.peak() + fit.staging - 3 * chunk);
    const MemoryStats real = bench.exec().stream.allocator()->stats();
    const double peak = static_cast<double>(real.in_use + trainer.arena().plan().bytes);
    EXPECT_NEAR(static_cast<double>(fit.peak), peak, 0.03 * peak);
    Config given = bench.config();
    given.optimizer.offload_staging_bytes = static_cast<std::int64_t>(fit.staging);
    EXPECT_EQ(dry_step(given, 1, fit.plan).peak(), fit.peak);
  }
}

// Returns the losses of the first steps, and the peak of all memory.
std::pair<std::vector<double>, std::size_t> losses_within(const Config& config) {
  StepBenchmark bench(config);
  std::vector<double> losses;
  for (int i = 0; i < 3; ++i) losses.push_back(bench.trainer().step().loss);
  const MemoryStats stats = bench.exec().stream.allocator()->stats();
  return {losses, stats.in_use + bench.trainer().arena().plan().bytes};
}

// The activations of a block are large enough to be offloaded.
Config hosted(std::int64_t host) {
  Config config = dry_config({"model.layers=8", "model.context=256", "model.vocab_size=1000", "train.recompute=auto"});
  config.train.activation_offload_bytes = host;
  return resolve_config(config, 1000, 1, Backend::cpu, false);
}

// Plans with and without host memory. They use no more host memory than allowed.
TEST(ActivationPlans, KeepBothBudgetsAndTheSameBits) {
  Config config = hosted(0);
  config.train.recompute = RecomputeChoice::none;
  const auto [losses, most] = losses_within(config);
  config.train.recompute = RecomputeChoice::full;
  const std::size_t least = losses_within(config).second;
  ASSERT_LT(least, most);
  int moved = 0;
  const std::pair<std::int64_t, std::vector<double>> kHosts[] = {
      {0, {0.75, 0.05}}, {3'000'000, {0.5, 0.25}}, {1'000'000'000, {1.0, 0.5, 0.05}}};
  for (const auto& [host, shares] : kHosts)
    for (const double share : shares) {
      const auto budget =
          static_cast<std::size_t>(static_cast<double>(least) + share * static_cast<double>(most - least));
      config = hosted(host);
      config.train.memory_budget = static_cast<double>(budget) * 1.001;
      const auto [same, peak] = losses_within(config);
      EXPECT_EQ(same, losses) << share << " with " << host;
      EXPECT_LE(peak, 1.001 * static_cast<double>(budget)) << share << " with " << host;
      const auto fit = find_activation_fit(config, 1, budget + budget / 1000, rates_named("", config));
      moved += fit && fit->host > 0;
    }
  EXPECT_GT(moved, 2);
}

TEST(ActivationPlans, OffloadActivationsThatAreSlowToRecompute) {
  const auto moved = [](std::int64_t host, double transfer, double share) {
    const Config config = hosted(0);
    DeviceRates rates = rates_named("", config);
    rates.host_bytes_per_second = transfer;
    const auto peak = [&](RecomputeChoice r) {
      Config c = config;
      c.train.recompute = r;
      return find_activation_fit(c, 1, std::size_t{1} << 40, rates)->peak;
    };
    const std::size_t least = peak(RecomputeChoice::full), most = peak(RecomputeChoice::none);
    const auto budget = least + static_cast<std::size_t>(share * static_cast<double>(most - least));
    Config c = config;
    c.train.activation_offload_bytes = host;
    const auto fit = find_activation_fit(c, 1, budget, rates);
    EXPECT_TRUE(fit && fit->peak <= budget);
    EXPECT_LE(fit->host, static_cast<std::size_t>(host));
    return fit->host;
  };
  EXPECT_EQ(moved(1'000'000'000, 1e12, 1), 0u) << "everything fits";
  EXPECT_GT(moved(1'000'000'000, 1e12, 0.5), 1'000'000u) << "copies are free";
  EXPECT_EQ(moved(1'000'000'000, 1e4, 0.5), 0u) << "copies take longer than anything";
  EXPECT_EQ(moved(0, 1e12, 0.5), 0u) << "nothing was said about the host";
  EXPECT_GT(moved(3'000'000, 1e12, 0.5), 0u);
}

// For a GPU, which this machine need not have, `auto` offloads without being told to: host memory is used if that is
// faster, or if nothing else fits. On a CPU, device and host share one memory.
TEST(ActivationPlans, UseTheHostOfAGpuUntold) {
  Config c = hosted(0);
  c.model.context = 512;
  c.train.recompute = RecomputeChoice::none;
  const DeviceRates rates = shipped_rates("h200");
  const std::unique_ptr<Mesh> mesh = mesh_of_one();
  EXPECT_EQ(activation_room(c, *mesh), 0u);
  c.run.device = DeviceChoice::cuda;
  const std::size_t room = activation_room(c, *mesh);
  EXPECT_GT(room, 100'000'000u);
  c.train.activation_offload = Switch::off;
  EXPECT_EQ(activation_room(c, *mesh), 0u);
  ActivationFit smallest;
  ASSERT_FALSE(find_activation_fit(c, 1, 2'000'000, rates, &smallest, room));
  c.train.activation_offload = Switch::automatic;
  const std::size_t least = smallest.peak;
  EXPECT_FALSE(find_activation_fit(c, 1, least - least / 50, rates, &smallest, 0)) << "a host without room";
  ASSERT_FALSE(find_activation_fit(c, 1, 2'000'000, rates, &smallest, room));
  EXPECT_LT(smallest.peak, least - least / 5) << "the host is there before a refusal";
  const auto fit = find_activation_fit(c, 1, smallest.peak, rates, nullptr, room);
  ASSERT_TRUE(fit);
  EXPECT_GT(fit->host, 0u);
  EXPECT_LE(fit->host, room);
  EXPECT_NE(fit->text().find("on the host"), std::string::npos) << fit->text();
  EXPECT_EQ(dry_step(c, 1, fit->plan).host, fit->host);
}

// A plan that mixes all options takes the predicted memory, per block and in total.
TEST(ActivationPlans, AMixedPlanTakesThePredictedMemory) {
  Config config = hosted(1'000'000'000);
  config.train.activation_offload = Switch::on;
  config.train.recompute = RecomputeChoice::none;
  StepBenchmark bench(config);
  using enum Recompute;
  const ActivationPlan plan{{{none}, {full, true}, {mlp}, {none, true}, {attention, true}, {block}, {full}, {mlp}}};
  bench.trainer().model().set_activations(plan, const_cast<HostOffload*>(bench.trainer().offload()));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(bench.trainer().step().accepted);
  const DryStep dry = dry_step(bench.config(), 1, plan);
  const double slab = static_cast<double>(bench.trainer().arena().plan().bytes);
  EXPECT_NEAR(static_cast<double>(dry.plan.bytes), slab, 0.03 * slab);
  EXPECT_EQ(dry.host, bench.trainer().offload()->bytes().moved);
  std::size_t host = 0;
  for (const PartMemory& m : dry.parts) host += m.host;
  EXPECT_EQ(host, dry.host);
}

// The run's memory estimate was wrong before: the run tries anyway, and can still lower the number of sequences.
TEST(MemoryChoices, ARunThatRanOutBeforeIsNotRefused) {
  Config config = hosted(0);
  config.train.memory_budget = 2e6;
  const auto mesh = Mesh::fake({.axes = {{"dp", 1}}, .unions = {}, .device = {}}, 0);
  EXPECT_THROW(choose_memory(config, *mesh, 0), Error);
  const MemoryChoice smallest = choose_memory(config, *mesh, 0, 1'000'000);
  EXPECT_GT(smallest.fit.peak, 2'000'000u);
  EXPECT_EQ(smallest.fit.budget, 2'000'000u);
}

// The budget that the error names is enough, and a smaller budget is not.
TEST(ActivationPlans, RefuseWithASufficientBudget) {
  for (const std::int64_t host : {0, 3'000'000, 1'000'000'000}) {
    const Config config = hosted(host);
    const DeviceRates rates = rates_named("", config);
    ActivationFit smallest;
    ASSERT_FALSE(find_activation_fit(config, 1, 2'000'000, rates, &smallest));
    const std::size_t least = smallest.peak;
    const auto enough = find_activation_fit(config, 1, least, rates);
    ASSERT_TRUE(enough) << host;
    EXPECT_LE(enough->peak, least);
    EXPECT_FALSE(find_activation_fit(config, 1, least - least / 50, rates)) << host;
    Config trained = config;
    trained.train.memory_budget = static_cast<double>(least);
    EXPECT_LE(losses_within(trained).second, 1.001 * static_cast<double>(least)) << host;
  }
  Config config = dry_config({"train.recompute=auto", "train.memory_budget=2e6"});
  try {
    StepBenchmark bench(config);
    FAIL() << "two megabytes were enough";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("train.memory_budget"), std::string::npos) << e.what();
  }
}

TEST(OutOfMemorySteps, AreRecomputedWithTheSameBits) {
  Config config = dry_config({"model.layers=3", "model.context=64", "train.recompute=auto"});
  std::vector<double> losses;
  std::int64_t all = 0;
  {
    const Refusing nothing(0);
    losses = losses_within(config).first;
    all = allocations;
  }
  ASSERT_GT(all, 300);
  std::mt19937 random = random_of_environment();
  for (int i = 0; i < events_of_environment(20); ++i) {
    const Refusing one(1 + static_cast<std::int64_t>(random()) % all);
    EXPECT_EQ(losses_within(config).first, losses) << "allocation " << refused;
    EXPECT_GE(allocations, refused);
  }
}

// Staging memory costs the least to give up: a run with less memory than it expected keeps its activations.
TEST(OutOfMemorySteps, GiveUpStagingMemoryFirst) {
  for (const char* recompute : {"train.recompute=auto", "train.recompute=none"}) {
    Config config = dry_config({recompute, "optimizer.offload=states", "optimizer.offload_chunk_bytes=10000",
                                "optimizer.offload_staging_bytes=auto"});
    std::vector<double> calm, losses;
    {
      const Refusing nothing(0);
      calm = losses_within(config).first;
    }
    StepBenchmark bench(config);
    const ActivationFit before = bench.trainer().memory().fit;
    const Refusing one(100);
    for (std::size_t i = 0; i < calm.size(); ++i) losses.push_back(bench.trainer().step().loss);
    const ActivationFit& now = bench.trainer().memory().fit;
    EXPECT_EQ(losses, calm) << recompute;
    EXPECT_LT(now.staging, before.staging);
    EXPECT_EQ(now.plan.blocks, before.plan.blocks) << bench.trainer().latest_oom_text();
    const MemoryStats real = bench.exec().stream.allocator()->stats();
    const double peak = static_cast<double>(real.in_use + bench.trainer().arena().plan().bytes);
    EXPECT_NEAR(static_cast<double>(now.peak), peak, 0.03 * peak);
  }
}

// The settings fix which activations are saved, or nothing more can be recomputed. Fewer sequences change the order of
// sums.
TEST(OutOfMemorySteps, TakeFewerSequencesIfNothingElseSavesMemory) {
  using Settings = std::vector<const char*>;
  for (const Settings& more : {Settings{"train.recompute=none"},
                               {"train.recompute=block", "data.packing.documents=true"},
                               {"train.recompute=block", "train.activation_offload=true", "train.micro_batch=0"}}) {
    const Config config = dry_config(more);
    std::vector<double> calm, losses;
    {
      const Refusing nothing(0);
      calm = losses_within(config).first;
    }
    const Refusing one(allocations / 2);
    StepBenchmark bench(config);
    const std::int64_t before = bench.trainer().memory().micro_batch;
    for (std::size_t i = 0; i < calm.size(); ++i) losses.push_back(bench.trainer().step().loss);
    EXPECT_EQ(bench.trainer().memory().micro_batch, before / 2) << more[0];
    EXPECT_NE(bench.trainer().latest_oom_text().find(str("; from now on ")), std::string::npos);
    for (std::size_t i = 0; i < calm.size(); ++i) EXPECT_NEAR(losses[i], calm[i], 1e-6 * calm[i]) << more[0];
  }
}

TEST(OutOfMemorySteps, EndTheRunIfNothingSavesMemory) {
  const Config config = dry_config({"train.recompute=auto", "train.micro_batch=4"});
  allocations = 0;
  refuse_allocation = [](bool) { return ++allocations > 300 && allocations % 40 == 0; };  // no step succeeds
  StepBenchmark bench(config);
  std::size_t peak = bench.trainer().memory().fit.peak;
  try {
    for (int i = 0; i < 100; ++i) bench.trainer().step();
    ADD_FAILURE() << "it went on";
  } catch (const OutOfMemory& e) {
    // The run already computes one sequence at a time and recomputes all it can: the error advises neither.
    EXPECT_NE(std::string(e.what()).find(": lower model.context, or share "), std::string::npos) << e.what();
  }
  refuse_allocation = nullptr;
  EXPECT_EQ(bench.trainer().memory().micro_batch, 1);
  EXPECT_LT(bench.trainer().memory().fit.peak, peak);
}

// If plans of single blocks do not fit, segments are recomputed: with the same bits and the predicted memory, and no
// plan of equal segments takes much less memory.
TEST(ActivationPlans, TakeSegmentsIfBlocksDoNotFit) {
  Config config = hosted(0);
  const std::size_t blocks_alone = dry_step(config, 1, ActivationPlan::uniform(8, Recompute::full)).peak();
  const std::vector<double> losses = losses_within(config).first;
  ActivationFit smallest;
  ASSERT_FALSE(find_activation_fit(config, 1, 2'000'000, rates_named("", config), &smallest));
  EXPECT_GT(smallest.plan.segments, 0);
  ASSERT_LT(smallest.peak, blocks_alone);
  double seconds = 1e9;
  for (const std::size_t budget :
       {smallest.peak, (smallest.peak + blocks_alone) / 2, blocks_alone - blocks_alone / 100}) {
    const auto fit = find_activation_fit(config, 1, budget, rates_named("", config));
    ASSERT_TRUE(fit);
    EXPECT_LE(fit->peak, budget);
    EXPECT_LE(fit->seconds, seconds);
    seconds = fit->seconds;
    Config trained = config;
    trained.train.memory_budget = 1.001 * static_cast<double>(budget);
    const auto [same, peak] = losses_within(trained);
    EXPECT_EQ(same, losses);
    EXPECT_LE(peak, 1.002 * static_cast<double>(budget));
  }
  using enum Recompute;
  for (const std::int64_t blocks : {2, 3, 4, 6})
    for (const Recompute how : {none, attention, mlp, block, full}) {
      ActivationPlan plan = ActivationPlan::uniform(8, how);
      plan.segments = 7 / blocks;
      plan.segment_blocks = blocks;
      EXPECT_GE(static_cast<double>(dry_step(config, 1, plan).peak()), 0.98 * static_cast<double>(smallest.peak));
    }
}

TEST(ActivationPlans, SegmentsTakeThePredictedMemory) {
  using enum Recompute;
  for (const std::int64_t blocks : {2, 3}) {
    StepBenchmark bench(hosted(0));
    ActivationPlan plan{{{mlp}, {mlp}, {full}, {full}, {none}, {block}, {attention}, {none}}};
    plan.segments = 4 / blocks;
    plan.segment_blocks = blocks;
    bench.trainer().model().set_activations(plan);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(bench.trainer().step().accepted);
    const double slab = static_cast<double>(bench.trainer().arena().plan().bytes);
    const DryStep dry = dry_step(bench.config(), 1, plan);
    EXPECT_NEAR(static_cast<double>(dry.plan.bytes), slab, 0.03 * slab) << blocks;
    for (const PartMemory& m : dry.parts) {
      const bool again = m.part.is_repeated() && m.part.number < plan.segments * plan.segment_blocks;
      EXPECT_EQ(m.once_peak > 0, again) << str(m.part);
      if (again) {
        EXPECT_LT(m.once_before, m.before) << str(m.part) << " ran first when less was kept";
      }
    }
  }
}

// A format that computes like layers without one, and cannot round SwiGLU's inputs.
struct PlainFormat final : LinearFormat {
  Var apply(Run& run, const Var& x, const Param& weight, const Var& bias, const Var& residual) const override {
    return linear(run, x, weight.var, bias, residual);
  }
};

// Every setting that an error advises is valid and saves memory.
TEST(MemoryAdvice, OfAGpuIsForTheStatesThatItMayHave) {
  const auto advice = [](const std::vector<const char*>& settings) {
    Config c = dry_config(settings);
    c.run.device = DeviceChoice::cuda;
    c.model.vocab_size = 300;
    return memory_advice(c, 1);
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const std::string host = "set optimizer.offload: ", moments = "set optimizer.moments: bf16";
  const std::string plain = advice({"train.precision=bf16"});
  EXPECT_TRUE(contains(plain, host + "states or all, " + moments + " or fp8")) << plain;
  const std::string all = advice({"train.precision=bf16", "optimizer.offload=all"});
  EXPECT_TRUE(contains(all, host + "weights, ")) << all;
  EXPECT_FALSE(contains(advice({"optimizer.offload=all", "train.linears=fp8_tensor"}), host));
  for (const char* reader : {"train.ema=0.9", "train.diagnostics_interval=5"}) {
    const std::string read = advice({"train.precision=bf16", reader});
    EXPECT_TRUE(contains(read, host + "states, " + moments)) << read;
    EXPECT_FALSE(contains(advice({"train.precision=bf16", reader, "optimizer.offload=states"}), host)) << reader;
  }
  const std::string rounds = "set train.swiglu_inputs: fp8";
  EXPECT_FALSE(contains(plain, rounds)) << plain;
  EXPECT_TRUE(contains(advice({"train.linears=fp8_tensor", "model.mlp=swiglu", "model.mlp_width=384"}), rounds));
  linear_formats()["plain"] = [](Model&) { return std::make_unique<PlainFormat>(); };
  for (const char* misfit : {"model.mlp=gelu", "model.mlp_width=320", "parallel.tp=2", "train.swiglu_inputs=fp8",
                             "train.linears_except=['*.mlp.*']", "train.linears=plain"})
    EXPECT_FALSE(
        contains(advice({"train.linears=fp8_tensor", "model.mlp=swiglu", "model.mlp_width=384", misfit}), rounds))
        << misfit;
  linear_formats().erase("plain");
  for (const char* precision : {"train.precision=fp32", "train.precision=tf32"}) {
    const std::string whole = advice({precision});
    EXPECT_TRUE(contains(whole, host + "states, set optimizer.moments: fp8, or")) << whole;
    EXPECT_FALSE(contains(whole, "bf16")) << whole;
  }
}

}  // namespace
}  // namespace ring
