// Memory that is planned for frozen weights of FP8 layers: the bytes of their format on the device, and their values in
// host memory.
#include <gtest/gtest.h>

#include "core/fields.h"
#include "engine/devices.h"
#include "engine/dry_step.h"
#include "engine/planner.h"
#include "engine/resolve.h"
#include "model/architectures.h"
#include "optim/groups.h"

namespace ring {
namespace {

// The device is a GPU that this machine need not have.
Config frozen_config(const std::vector<std::string>& settings, int ranks) {
  Config c;
  std::vector<std::string> all = {
      "run.device=cuda",      "run.threads=1",       "model.context=256",
      "model.layers=4",       "model.width=256",     "model.heads=4",
      "train.batch_size=4",   "train.micro_batch=2", "train.steps=8",
      "model.vocab_size=500", "data.path=random",    "optimizer.groups=[{match: ['blocks.*.weight'], frozen: true}]"};
  all.insert(all.end(), settings.begin(), settings.end());
  override_config(c, all);
  return resolve_config(c, 500, ranks, Backend::cuda, false);
}

DryStep dry_run(const std::vector<std::string>& settings, int ranks, int rank) {
  return dry_step(frozen_config(settings, ranks), ranks, ActivationPlan::uniform(4, Recompute::none, false), rank);
}

// Numbers of elements of the model's parameters: frozen weights (of linear layers in blocks), and all others.
struct Elements {
  std::size_t encoded = 0, plain = 0;
  std::size_t scales = 0;  // number of scales with fp8_blocks
};
Elements elements_of_model() {
  ModelConfig c;
  c.layers = 4, c.width = 256, c.heads = 4, c.context = 256, c.vocab_size = 500;
  Elements e;
  const std::unique_ptr<Model> model = make_model(c, vocab_padding(Backend::cuda));
  for (const Param* p : model->parameters().declared()) {
    const auto n = static_cast<std::size_t>(p->shape.numel());
    (p->linear ? e.encoded : e.plain) += static_cast<std::size_t>(param_aligned(p->shape.numel()));
    if (p->linear) e.scales += n / 128 / 128;
  }
  return e;
}

TEST(FrozenMemory, IsAByteOnTheDeviceAndTheMasterOnTheHost) {
  const Elements e = elements_of_model();
  ASSERT_GT(e.encoded, 3'000'000u);
  for (const char* format : {"train.linears=fp8_blocks", "train.linears=fp8_tensor"}) {
    SCOPED_TRACE(format);
    const DryStep dry = dry_run({format}, 1, 0), copies = dry_run({format, "train.ema=0.9"}, 1, 0);
    EXPECT_EQ(dry.host_weights, 4 * e.encoded);
    EXPECT_EQ(dry.host_states, 0u);
    EXPECT_GE(dry.weights, 6 * e.plain + e.encoded + 4 * e.scales * (std::string(format).ends_with("blocks") ? 1 : 0));
    EXPECT_LE(dry.weights, 6 * e.plain + e.encoded * 101 / 100);
    EXPECT_EQ(copies.host_weights, 0u);
    EXPECT_GT(copies.weights, 6 * (e.plain + e.encoded));
    EXPECT_EQ(copies.gradients, dry.gradients);
    EXPECT_EQ(copies.optimizer_states, dry.optimizer_states);
    EXPECT_LT(dry.plan.bytes, copies.plan.bytes) << "no FP8 copies are kept during a step";

    EXPECT_EQ(dry_run({format, "optimizer.master=bf16"}, 1, 0).host_weights, 2 * e.encoded);
    const DryStep offloaded = dry_run({format, "optimizer.offload=all"}, 1, 0);
    EXPECT_EQ(offloaded.host_weights, 4 * e.encoded);
    EXPECT_EQ(offloaded.weights, dry.weights - 4 * e.plain);

    std::size_t host = 0, weights = 0;
    for (const int rank : {0, 1}) {
      const DryStep part = dry_run({format, "parallel.zero=3"}, 2, rank);
      host += part.host_weights;
      weights += part.weights - part.weight_buffers;
      EXPECT_LT(static_cast<double>(part.host_weights), 0.6 * 4 * static_cast<double>(e.encoded));
    }
    EXPECT_EQ(host, 4 * e.encoded);
    EXPECT_GE(weights, 6 * e.plain + e.encoded);
    EXPECT_LE(weights, 6 * e.plain + e.encoded * 101 / 100);
  }
}

TEST(FrozenMemory, IsInPlans) {
  const auto plan = [](const std::vector<std::string>& settings) {
    PlanRequest q;
    q.config = frozen_config(settings, 1);
    q.config.train.activation_offload = Switch::off;
    q.rates = shipped_rates("h100", 2);
    q.budget = std::size_t{64} << 30;
    return plan_step(q).value();
  };
  const Elements e = elements_of_model();
  const PlannedStep frozen = plan({"train.linears=fp8_blocks"}), bf16 = plan({"train.linears=bf16"});
  EXPECT_EQ(frozen.host, 4 * e.encoded);
  EXPECT_EQ(frozen.host_lasting, 4 * e.encoded);
  EXPECT_EQ(bf16.host, 0u);
  EXPECT_EQ(bf16.weights, 6 * (e.plain + e.encoded));
  EXPECT_EQ(bf16.weights - frozen.weights, bf16.lasting - frozen.lasting);
  EXPECT_GE(bf16.weights - frozen.weights, 49 * e.encoded / 10);
  EXPECT_LE(bf16.weights - frozen.weights, 5 * e.encoded);
}

}  // namespace
}  // namespace ring
