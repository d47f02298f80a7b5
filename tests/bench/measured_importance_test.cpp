// Memory runs out while a step measures block importance: the step measures again with less memory, and nothing of the
// first attempt remains.
#include <gtest/gtest.h>

#include "bench/step.h"
#include "core/fields.h"
#include "tests/bench/refusing.h"
#include "tests/paths.h"

namespace ring::test {
namespace {

struct Steps {
  std::vector<double> losses;
  std::vector<float> averages;
  std::int64_t shortages = 0, allocations = 0;
};

// Trains with allocation `nth` refused, counting only those outside the steps' own computation; 0 refuses none.
Steps train(std::int64_t nth) {
  Config config;
  load_config(
      config, source_dir() + "/configs/nanogpt_cpu.yaml",
      {"run.threads=1", "model.context=256", "model.layers=2", "model.width=64", "model.heads=2",
       "model.vocab_size=300", "train.batch_size=4", "train.micro_batch=4", "train.recompute=auto",
       "model.attention={kind: block_sparse, block: 64, rules: [{pattern: importance, keep: 2, interval: 1}]}"});
  StepBenchmark bench(config);
  Trainer& trainer = bench.trainer();
  Steps steps;
  const Refusing one(nth);
  refuse_allocation = [](bool within_step) { return !within_step && ++allocations == refused; };
  for (int step = 0; step < 4; ++step) steps.losses.push_back(trainer.step().loss);
  State state;
  trainer.add_state(state);
  const Tensor& averages = state.tensors().at("importance.blocks.0.averages").local;
  steps.averages.assign(averages.data<float>(), averages.data<float>() + averages.numel());
  steps.shortages = std::ssize(trainer.oom_fallbacks());
  steps.allocations = allocations;
  return steps;
}

TEST(MeasuredImportance, IsMeasuredAgainIfMemoryRunsOut) {
  const Steps calm = train(0);
  ASSERT_GT(calm.allocations, 40);
  for (std::int64_t nth = 1; nth <= calm.allocations; nth += 13) {
    const Steps steps = train(nth);
    EXPECT_EQ(steps.shortages, 1) << nth;
    EXPECT_EQ(steps.losses, calm.losses) << nth;
    EXPECT_EQ(steps.averages, calm.averages) << nth;
  }
}

}  // namespace
}  // namespace ring::test
