// Budgets between the minimum that a step needs and the memory of saving everything: steps take what was predicted.
#include <gtest/gtest.h>

#include "bench/step.h"
#include "core/fields.h"
#include "core/step_arena.h"
#include "engine/activation_fit.h"
#include "engine/memory_choice.h"
#include "engine/rates.h"
#include "engine/resolve.h"

namespace ring {
namespace {

struct BudgetShape {
  const char* name;
  std::vector<const char*> settings;
};
void PrintTo(const BudgetShape& s, std::ostream* out) { *out << s.name; }

Config config_of(const std::vector<const char*>& settings) {
  Config c;
  std::vector<std::string> overrides = {"run.device=cpu",       "run.threads=1",       "model.context=128",
                                        "model.layers=4",       "model.width=64",      "model.heads=4",
                                        "train.batch_size=4",   "train.micro_batch=2", "train.steps=8",
                                        "model.vocab_size=300", "data.path=random"};
  overrides.insert(overrides.end(), settings.begin(), settings.end());
  override_config(c, overrides);
  return c;
}

struct Steps {
  std::vector<double> losses;
  ActivationFit fit;
  std::size_t peak = 0;   // largest use of all memory
  std::size_t taken = 0;  // memory in use plus the slab, of which steps use as much as the plan predicts
};

Steps train(const Config& config) {
  StepBenchmark bench(config);
  Steps steps;
  for (int i = 0; i < 3; ++i) steps.losses.push_back(bench.trainer().step().loss);
  steps.fit = bench.trainer().memory().fit;
  const MemoryStats stats = bench.exec().stream.allocator()->stats();
  steps.peak = stats.peak;
  steps.taken = stats.in_use + bench.trainer().arena().plan().bytes;
  return steps;
}

// Returns the smallest peak of a step, and the peak if it saves everything.
std::pair<std::size_t, std::size_t> range_of(const Config& asked) {
  Config c = resolve_config(asked, asked.model.vocab_size, 1, Backend::cpu, false);
  const DeviceRates rates = rates_named("", c);
  ActivationFit smallest;
  EXPECT_FALSE(find_activation_fit(c, 1, 1, rates, &smallest));
  c.train.recompute = RecomputeChoice::none;
  return {smallest.peak, find_activation_fit(c, 1, std::size_t{1} << 40, rates)->peak};
}

class Budgets : public testing::TestWithParam<BudgetShape> {};

TEST_P(Budgets, AreKeptWithTheSameBitsAsPredicted) {
  Config config = config_of(GetParam().settings);
  const auto [least, most] = range_of(config);
  ASSERT_LT(least, most);
  const double max_taken = config.data.packing.documents ? 1.001 : 1;  // only the step knows where they end
  std::vector<double> losses;
  for (const double share : {1.0, 0.6, 0.25}) {
    SCOPED_TRACE(share);
    const auto budget = least + static_cast<std::size_t>(share * static_cast<double>(most - least));
    config.train.memory_budget = static_cast<double>(budget);
    const Steps steps = train(config);
    if (losses.empty()) losses = steps.losses;
    EXPECT_EQ(steps.losses, losses);
    EXPECT_LE(steps.fit.peak, budget);
    EXPECT_LE(static_cast<double>(steps.taken), max_taken * static_cast<double>(budget));
    EXPECT_NEAR(static_cast<double>(steps.fit.peak), static_cast<double>(steps.taken),
                0.03 * static_cast<double>(steps.taken));
    EXPECT_LE(static_cast<double>(steps.peak), 1.03 * static_cast<double>(budget)) << "before steps had a plan";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Budgets,
    testing::Values(
        BudgetShape{"gpt2", {}}, BudgetShape{"dropout", {"model.dropout=0.1", "model.attention_dropout=0.1"}},
        BudgetShape{"llama",
                    {"model.norm=rms", "model.positions=rope", "model.mlp=swiglu", "model.biases=none",
                     "model.tied_embeddings=false"}},
        BudgetShape{
            "qwen",
            {"model.norm=rms", "model.positions=rope", "model.mlp=swiglu", "model.qk_norm=true", "model.kv_heads=2"}},
        BudgetShape{"one_kv_head", {"model.kv_heads=1", "model.mlp=relu2"}},
        BudgetShape{"large_vocabulary", {"model.vocab_size=5000", "model.mlp=gelu"}},
        BudgetShape{"window", {"model.attention={kind: window, window: 32, sinks: 2}"}},
        BudgetShape{"dilated", {"model.attention={kind: dilated, segments: [32, 128], rates: [1, 4]}"}},
        BudgetShape{
            "block_sparse",
            {"model.attention={kind: block_sparse, block: 64, rules: [{pattern: local_global}]}", "model.context=256"}},
        BudgetShape{"by_content",
                    {"model.attention={kind: block_sparse, block: 64, rules: [{pattern: content, local: 1, keep: 2}]}",
                     "model.context=256"}},
        BudgetShape{"chunks", {"train.mlp_chunk=100", "train.loss_chunk_bytes=65536"}},
        BudgetShape{"documents", {"data.packing.documents=true"}},
        BudgetShape{"muon_and_average", {"optimizer.kind=muon", "train.ema=0.99"}}),
    [](const auto& info) { return std::string(info.param.name); });

// Without a budget, the model's activations alone take four times the budget, which covers all of training, with
// weights and states.
TEST(BudgetsOfLargeActivations, AQuarterOfThemIsEnoughForTheSameLosses) {
  Config config = config_of({"model.context=1024", "model.layers=16", "model.width=32", "train.batch_size=2"});
  config.train.recompute = RecomputeChoice::none;
  const Steps all = train(config);
  const Config resolved = resolve_config(config, 300, 1, Backend::cpu, false);
  const std::size_t activations = dry_step(resolved, 1, all.fit.plan).plan.bytes;
  config.train.recompute = RecomputeChoice::automatic;
  config.train.memory_budget = static_cast<double>(activations) / 4;
  const Steps few = train(config);
  EXPECT_EQ(few.losses, all.losses);
  EXPECT_LE(few.taken, activations / 4);
  EXPECT_LE(few.peak, activations / 4);
}

// On GPUs, the workspace of GEMMs [64 MiB] is part of a step's memory. If halving the sequences saves less than a tenth
// of the total, the minimum number of sequences is chosen.
TEST(MemoryChoices, FewerSequencesAreHalfOrTheMinimum) {
  const auto next = [](const char* context, const char* width) {
    const Config c = config_of({"run.device=cuda", "train.precision=fp32", "train.recompute=block", context, width,
                                "train.activation_offload=false", "train.batch_size=8", "train.micro_batch=4"});
    const Config resolved = resolve_config(c, 300, 2, Backend::cuda, false);
    const DeviceRates rates = shipped_rates("h100");
    const auto fit = find_activation_fit(resolved, 2, std::size_t{1} << 36, rates);
    const auto smaller = smaller_choice(resolved, 2, {4, *fit, rates});
    EXPECT_LT(smaller->fit.peak, fit->peak);
    return smaller->micro_batch;
  };
  EXPECT_EQ(next("model.context=64", "model.width=128"), 1);
  EXPECT_EQ(next("model.context=8192", "model.width=128"), 2);
}

}  // namespace
}  // namespace ring
