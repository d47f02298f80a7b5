// Training of low-rank adapters (model.lora): frozen weights, memory, resuming, initial weights, layouts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/fields.h"
#include "engine/devices.h"
#include "engine/dry_step.h"
#include "engine/resolve.h"
#include "model/architectures.h"
#include "optim/groups.h"
#include "parallel/plan.h"
#include "tests/error_of.h"
#include "tests/parallel/one_process.h"

namespace ring::test {
namespace {

const std::string kLora = "model.lora={rank: 4, alpha: 16}";

bool is_adapter(const std::string& name) { return name.find(".lora_") != std::string::npos; }

class DistLora : public testing::Test {
 protected:
  ~DistLora() override { std::filesystem::remove_all(folder_); }
  static TrainingOptions options(int steps, const Overrides& more = {}, int ranks = 1) {
    TrainingOptions o;
    o.steps = steps, o.ranks = ranks;
    o.overrides = {kLora, "optimizer.lr=0.01"};
    o.overrides.insert(o.overrides.end(), more.begin(), more.end());
    return o;
  }
  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("ringmaster-lora-" + std::to_string(getpid()))).string();
};

// Only adapters change, and only adapters have optimizer states.
TEST_F(DistLora, TrainsOnlyAdapters) {
  for (const Overrides& more : std::vector<Overrides>{{}, {"optimizer.kind=muon", "model.lora.dropout=0.1"}}) {
    const Training start = train_on_ranks(options(0, more)), end = train_on_ranks(options(40, more));
    ASSERT_EQ(start.errors + end.errors, "");
    EXPECT_LT(end.losses.back(), end.losses.front() - 0.1);
    std::size_t changed = 0, states = 0;
    for (const auto& [name, values] : start.tensors) {
      if (name.starts_with("model.")) {
        EXPECT_EQ(values != end.tensors.at(name), is_adapter(name)) << name;
        changed += values != end.tensors.at(name);
      } else if (name.starts_with("optimizer.")) {
        EXPECT_TRUE(is_adapter(name)) << name;
        ++states;
      }
    }
    EXPECT_EQ(changed, 2u * 2 * 7);
    EXPECT_EQ(states, more.empty() ? 2 * changed : changed);
  }
}

TEST_F(DistLora, ResumesExactly) {
  const Overrides more = {"model.lora.dropout=0.1", "optimizer.groups=[{match: ['*.lora_b.weight'], lr: 0.05}]"};
  const Training whole = train_on_ranks(options(6, more));
  ASSERT_EQ(whole.errors, "");
  TrainingOptions half = options(3, more), rest = options(3, more);
  half.save = folder_;
  const Training first = train_on_ranks(half);
  ASSERT_EQ(first.errors, "");
  rest.load = first.checkpoint;
  const Training second = train_on_ranks(rest);
  ASSERT_EQ(second.errors, "");
  EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
  EXPECT_EQ(second.tensors, whole.tensors);
}

// The weights of a run without adapters are the base: the first loss is that of a run that continues without adapters.
TEST_F(DistLora, StartsFromWeightsWithoutAdapters) {
  TrainingOptions pretraining = options(4, {"model.lora.rank=0", "model.lora.alpha=0"});
  pretraining.save = folder_;
  const Training base = train_on_ranks(pretraining);
  ASSERT_EQ(base.errors, "");
  const auto continued = [&](const Overrides& more) {
    TrainingOptions o = options(3, more);
    o.load = base.checkpoint;
    o.init_from = true;
    return train_on_ranks(o);
  };
  const Training adapted = continued({}), plain = continued({"model.lora.rank=0", "model.lora.alpha=0"});
  ASSERT_EQ(adapted.errors + plain.errors, "");
  EXPECT_NEAR(adapted.losses.front(), plain.losses.front(), 1e-6 * plain.losses.front());
  for (const auto& [name, values] : base.tensors) {
    if (!name.starts_with("model.")) continue;
    EXPECT_EQ(values, adapted.tensors.at(name)) << name;
  }
}

// Base layers in FP8 are quantized as without adapters, whose own GEMMs stay in f32.
TEST_F(DistLora, BaseLayersMayBeInFp8) {
  const Training exact = train_on_ranks(options(20));
  for (const char* format : {"train.linears=fp8_blocks", "train.linears=fp8_tensor"}) {
    const Training start = train_on_ranks(options(0, {format})), end = train_on_ranks(options(20, {format}));
    ASSERT_EQ(start.errors + end.errors + exact.errors, "") << format;
    const double difference = largest_loss_difference(exact, end);
    EXPECT_GT(difference, 1e-6) << format;
    EXPECT_LT(difference, 2e-2) << format;
    for (const auto& [name, values] : start.tensors) {
      if (!name.starts_with("model.")) continue;
      EXPECT_EQ(values != end.tensors.at(name), is_adapter(name)) << format << " " << name;
    }
  }
}

// The dropout masks of adapters do not depend on how a sequence is divided.
TEST_F(DistLora, SequencesMayBeComputedInParts) {
  const Overrides whole = {"train.micro_batch=1", "model.lora.dropout=0.2", "optimizer.eps=1e-4"};
  const Training alone = train_on_ranks(options(4, whole));
  for (const auto& [ranks, more] :
       {std::pair{1, Overrides{"train.sequence_chunk=16"}}, {2, {"parallel.pp=2", "parallel.pp_slices=2"}}}) {
    Overrides parts = whole;
    parts.insert(parts.end(), more.begin(), more.end());
    const Training divided = train_on_ranks(options(4, parts, ranks));
    ASSERT_EQ(alone.errors + divided.errors, "") << more[0];
    EXPECT_LE(largest_loss_difference(alone, divided), kLoss) << more[0];
    EXPECT_LE(largest_difference(alone, divided), kWeights) << more[0];
  }
}

const std::vector<Layout>& lora_layouts() {
  static const std::vector<Layout> all = {
      {"dp", 2, {"parallel.dp=2", "train.micro_batch=2"}},
      {"zero1", 2, {"parallel.zero=1"}},
      {"zero3", 4, {"parallel.zero=3", "train.micro_batch=2"}},
      {"tp", 2, {"parallel.tp=2"}},
      {"tp_zero3", 4, {"parallel.tp=2", "parallel.zero=3"}},
      {"pp", 2, {"parallel.pp=2"}},
      {"cp", 2, {"parallel.cp=2"}},
      {"cp_zero2", 4, {"parallel.cp=2", "parallel.zero=2"}},
      {"cp_tp", 4, {"parallel.cp=2", "parallel.tp=2"}},
      {"mlp_chunk", 2, {"parallel.tp=2", "train.mlp_chunk=16"}},
      {"recompute", 1, {"train.recompute=full"}},
      {"offload", 1, {"optimizer.offload=all", "optimizer.offload_chunk_bytes=10000"}}};
  return all;
}

struct LoraKind {
  std::string name;
  Overrides overrides;
};
const std::vector<LoraKind>& lora_kinds() {
  static const std::vector<LoraKind> all = {
      {"adamw", {"optimizer.eps=1e-4"}},
      {"muon", {"optimizer.kind=muon", "model.biases=qkv", "model.mlp=gelu_tanh"}},
      {"dropout", {"optimizer.eps=1e-4", "model.lora.dropout=0.2", "model.lora.targets=[wq, wv, gate]"}},
      {"states",
       {"optimizer.eps=1e-4", "model.mixers=[gated_delta_net, attention]",
        "model.gated_delta_net={key_heads: 2, value_heads: 4, key_width: 16, value_width: 8}"}}};
  return all;
}

class DistLoraLayouts : public LayoutTest {};
INSTANTIATE_TEST_SUITE_P(All, DistLoraLayouts, testing::ValuesIn(lora_layouts()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DistLoraLayouts, EqualsOneProcess) {
  for (const LoraKind& kind : lora_kinds()) {
    SCOPED_TRACE(kind.name);
    const bool divides_sequences = GetParam().name.starts_with("cp");
    if (kind.name == "states" && divides_sequences) continue;
    expect_equal_to_one_process(GetParam(), [&](int ranks, const Overrides& layout) {
      TrainingOptions o;
      o.steps = 4, o.ranks = ranks, o.validate = true;
      o.overrides = {kLora, "optimizer.lr=0.02", "model.dropout=0.1"};
      for (const Overrides& more : {kind.overrides, layout})
        o.overrides.insert(o.overrides.end(), more.begin(), more.end());
      return o;
    });
  }
}

// --- Memory.
Config lora_config(const Overrides& more, int ranks) {
  Config c;
  Overrides all = {"run.device=cpu",  "run.threads=1",    "model.context=64",    "model.layers=4",
                   "model.width=256", "model.heads=4",    "train.batch_size=4",  "train.micro_batch=2",
                   "train.steps=8",   "data.path=random", "model.vocab_size=500"};
  all.insert(all.end(), more.begin(), more.end());
  override_config(c, all);
  return resolve_config(c, 500, ranks, Backend::cpu, false);
}

TEST(LoraMemory, GradientsAndStatesOfFrozenWeightsTakeNone) {
  const auto dry = [](const Overrides& more) {
    return dry_step(lora_config(more, 1), 1, ActivationPlan::uniform(4, Recompute::none, false), 0);
  };
  const auto model = make_model(lora_config({"model.lora.rank=8"}, 1).model);
  std::size_t adapters = 0, base = 0;
  for (const Param* p : model->parameters().declared())
    (p->adapter ? adapters : base) += static_cast<std::size_t>(param_aligned(p->shape.numel()));
  ASSERT_GT(base, 10 * adapters);
  const DryStep lora = dry({"model.lora.rank=8"}), whole = dry({}), some = dry({"model.lora={rank: 8, targets: [wq]}"});
  EXPECT_EQ(lora.weights, 4 * (base + adapters));
  EXPECT_EQ(lora.gradients, 4 * adapters);
  EXPECT_EQ(lora.optimizer_states, 8 * adapters);
  EXPECT_EQ(whole.gradients, 4 * base);
  EXPECT_EQ(whole.optimizer_states, 8 * base);
  EXPECT_LT(some.plan.bytes, lora.plan.bytes) << "frozen layers without an adapter save no inputs";
}

TEST_F(DistLora, StepsTakeTheMemoryThatWasPredicted) {
  const auto run = [](int steps, const Overrides& more) { return options(steps, more); };
  expect_predicted_memory(run, {"none", "full"});
}

TEST(LoraSettings, GroupsAndLayoutsThatCannotWorkAreRefused) {
  ModelConfig m;
  m.vocab_size = 64, m.context = 64, m.layers = 2, m.width = 64, m.heads = 4, m.tied_embeddings = false;
  m.lora = {.rank = 4, .dropout = 0.1};
  const auto groups = [&](const std::string& text) {
    return error_of([&] {
      OptimizerConfig c;
      load_config_text(c, "{groups: " + text + "}", "test");
      bind_groups(c, make_model(m.resolved())->parameters());
    });
  };
  EXPECT_PRED2(contains, groups("[{match: ['*.wq.weight'], lr: 1}]"), "frozen (model.lora)");
  EXPECT_PRED2(contains, groups("[{match: ['*.lora_?.weight'], frozen: true}]"), "nothing is left to train");
  EXPECT_EQ(groups("[{match: ['*.lora_b.weight'], lr: 1}]"), "");
  ParallelConfig tp;
  tp.tp = 2;
  const auto layout = [&] { return error_of([&] { make_plan(tp, m.resolved(), {24, 1, {}, 0}, 2); }); };
  EXPECT_PRED2(contains, layout(), "model.lora.dropout: 0.1 is not supported");
  m.lora.targets = {"wq", "up"};
  EXPECT_EQ(layout(), "");
}

}  // namespace
}  // namespace ring::test
