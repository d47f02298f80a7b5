// Bad steps of a trainer. The test changes the trainer's weights between steps.

#include "trainer/bad_steps.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "bench/step.h"

namespace ring {
namespace {

class BadStepsOfATrainer : public testing::Test {
 protected:
  static Config config() {
    Config c;
    c.run.device = DeviceChoice::cpu;
    c.run.threads = 1;
    c.run.directory = "/nonexistent";
    c.model.context = 32;
    c.model.layers = 2;
    c.model.width = 32;
    c.model.heads = 2;
    c.train.batch_size = 4;
    c.train.steps = 100;
    c.train.recompute = RecomputeChoice::none;
    c.train.on_bad_step = OnBadStep::skip;
    return c;
  }
  float& weight() { return bench_.trainer().model().parameters().layout()[0]->var.value.data<float>()[5]; }
  StepReport broken_step() {
    const float good = std::exchange(weight(), std::numeric_limits<float>::quiet_NaN());
    const StepReport r = bench_.trainer().step();
    weight() = good;
    return r;
  }

  StepReport overflowing_step() {
    const float good = std::exchange(weight(), 3e38f);
    const StepReport r = bench_.trainer().step();
    found_ = bench_.trainer().diagnose_step();
    weight() = good;
    return r;
  }

  Config config_ = config();
  std::string found_;
  StepBenchmark bench_{config_};
  std::unique_ptr<Mesh> mesh_ = mesh_of_one();
  RunDirectory dir_{"/nonexistent"};
  State state_;
  BadSteps bad_{config_, dir_, bench_.trainer(), state_, *mesh_};
};

TEST_F(BadStepsOfATrainer, AStepThatTheDeviceComputedWronglyIsRecomputed) {
  StepBenchmark undisturbed(config_);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(bench_.trainer().step().loss, undisturbed.trainer().step().loss);
  const StepReport wrong = broken_step();
  ASSERT_FALSE(wrong.accepted);
  const StepReport again = bad_.recompute_step(wrong);
  EXPECT_TRUE(again.accepted);
  EXPECT_EQ(again.step, 4);
  EXPECT_EQ(again.loss, undisturbed.trainer().step().loss);
  EXPECT_EQ(bench_.trainer().step().loss, undisturbed.trainer().step().loss);
}

TEST_F(BadStepsOfATrainer, SkippedSamplesAreReplacedByTheNextSamples) {
  Trainer& trainer = bench_.trainer();
  for (int i = 0; i < 3; ++i) trainer.step();
  const StepReport wrong = broken_step();
  EXPECT_FALSE(bad_.skip_or_roll_back(wrong, false));
  ASSERT_EQ(trainer.guard().bad_steps().size(), 1u);
  const BadStep& bad = trainer.guard().bad_steps()[0];
  EXPECT_EQ(bad.step, 4);
  EXPECT_EQ(bad.first_sample, 12);
  EXPECT_EQ(bad.end_sample, 16);
  EXPECT_EQ(trainer.step().step, 4);
  EXPECT_EQ(trainer.next_sample(), 20);
}

// A diagnosis computes as many sequences at a time as steps currently do.
TEST_F(BadStepsOfATrainer, AreDiagnosedAfterMemoryRanOut) {
  Trainer& trainer = bench_.trainer();
  const auto expect_found = [&] {
    const std::string shape = str("f32[", trainer.plan().micro_batch * config_.model.context, ",32]");
    EXPECT_NE(found_.find("samples 0 to 3;"), std::string::npos) << found_;
    EXPECT_NE(found_.find("activation after blocks.0 (" + shape), std::string::npos) << found_;
  };
  EXPECT_FALSE(overflowing_step().accepted);
  expect_found();
  for (std::int64_t rows = trainer.plan().micro_batch; rows > 1; rows = trainer.plan().micro_batch) {
    refuse_allocation = [](bool) { return refuse_allocation.exchange(nullptr) != nullptr; };
    EXPECT_FALSE(overflowing_step().accepted);
    ASSERT_LT(trainer.plan().micro_batch, rows);
    expect_found();
  }
  EXPECT_TRUE(trainer.step().accepted);
}

}  // namespace
}  // namespace ring
