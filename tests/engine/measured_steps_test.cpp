// Compares plans with steps that were measured on GPUs (docs/measured/plans.md).

#include <gtest/gtest.h>

#include "core/fields.h"
#include "engine/planner.h"
#include "engine/resolve.h"
#include "tests/paths.h"

namespace ring {
namespace {

struct MeasuredStep {
  const char* shape;  // in bench/shapes
  int gpus = 1;
  double milliseconds = 0;
  std::vector<std::string> settings = {};
};

const std::vector<std::string> kKeptWhole = {"train.recompute=none"};
const std::string kWindow4096 = "model.attention={kind: window, window: 4096}";
const std::string kWindowAndPools = "model.attention={kind: window, window: 4096, pools: [64]}";

std::string selected_by(const char* rule) {
  return str("model.attention={kind: block_sparse, block: 128, rules: [{pattern: ", rule,
             ", local: 2, first: 1, keep: 32}]}");
}

std::vector<std::string> zero3(int gpus, int micro_batch, int sequences) {
  return {str("train.batch_size=", sequences), str("train.micro_batch=", micro_batch), str("parallel.dp=", gpus),
          "parallel.zero=3"};
}

std::vector<MeasuredStep> measured_steps() {
  const std::string at64 = "model.context=65536", at128 = "model.context=131072", layers = "model.layers=8";
  std::vector<std::string> fp8_of_8b = zero3(2, 2, 4);
  fp8_of_8b.emplace_back("train.linears=fp8_blocks");
  return {{"gpt2", 1, 102.7, kKeptWhole},
          {"qwen05", 1, 189.9, kKeptWhole},
          {"qwen15", 1, 524.6, kKeptWhole},
          {"1b", 1, 238.2, kKeptWhole},
          {"1b32k", 1, 960.3, kKeptWhole},
          {"1b", 1, 187.4, {"train.recompute=none", "train.linears=fp8_blocks"}},
          {"1b", 1, 187.6, {"train.recompute=none", "train.linears=fp8_tensor"}},
          {"1b32k", 1, 3117.1, {at64}},
          {"1b32k", 1, 974.5, {at64, kWindow4096}},
          {"1b32k", 1, 1209.8, {at64, kWindowAndPools}},
          {"1b32k", 1, 1035.7, {at64, selected_by("content")}},
          {"1b32k", 1, 1156.8, {at64, selected_by("learned")}},
          {"1b32k", 1, 4006.1, {at128, layers}},
          {"1b32k", 1, 778.9, {at128, layers, kWindow4096}},
          {"1b32k", 1, 961, {at128, layers, kWindowAndPools}},
          {"1b32k", 1, 821.8, {at128, layers, selected_by("content")}},
          {"1b32k", 1, 896.5, {at128, layers, selected_by("learned")}},
          {"8b", 1, 730.7, {"train.micro_batch=1"}},
          {"8b", 2, 764.2, zero3(2, 1, 2)},
          {"8b", 2, 1497.6, zero3(2, 2, 4)},
          {"8b", 2, 1106.6, fp8_of_8b},
          {"8b", 4, 770.7, zero3(4, 1, 4)},
          {"1b", 4, 253.2, zero3(4, 4, 16)},
          {"1b", 4, 250.7, {"train.batch_size=16", "train.micro_batch=4", "parallel.dp=4"}}};
}

PlannedStep planned(const MeasuredStep& step) {
  Config c;
  std::vector<std::string> settings = {"data.path=none"};
  settings.insert(settings.end(), step.settings.begin(), step.settings.end());
  load_config(c, str(test::source_dir(), "/bench/shapes/", step.shape, ".yaml"), settings);
  PlanRequest q{.world = step.gpus};
  q.rates = shipped_rates("h200");
  q.budget = static_cast<std::size_t>(q.rates.memory_bytes);
  const ParallelConfig given = std::exchange(c.parallel, {});
  q.config = resolve_config(c, c.model.vocab_size, 1, Backend::cuda, false);
  q.config.parallel = given;
  return plan_step(q).value();
}

TEST(MeasuredSteps, TakeWhatPlansPredict) {
  for (const MeasuredStep& step : measured_steps()) {
    const double milliseconds = 1e3 * planned(step).seconds();
    EXPECT_NEAR(milliseconds, step.milliseconds, 0.1 * step.milliseconds)
        << step.shape << " on " << step.gpus << " GPUs, " << (step.settings.empty() ? "" : step.settings.back());
  }
}

}  // namespace
}  // namespace ring
