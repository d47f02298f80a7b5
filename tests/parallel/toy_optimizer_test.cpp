// A new optimizer is a class and a name. This one is momentum with one state. Only this file knows it, and still it
// trains, is saved, resumed and sharded among ranks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/check.h"
#include "core/fields.h"
#include "core/step_state.h"
#include "kernels/elementwise.h"
#include "optim/kinds.h"
#include "tests/parallel/training.h"
#include "tests/trainer/tiny.h"

namespace ring::test {
namespace {

// u = 0.9 u + clip g; w = w - lr u
class Momentum final : public UpdateRule {
 public:
  std::vector<StateKind> states() const override { return {{"u"}}; }
  void update(const ParameterUpdate& p, const ExecContext& ctx) const override {
    if (!ctx.stream.impl().computes()) return;                               // a memory plan has no bytes to read
    const StepState& s = *reinterpret_cast<const StepState*>(p.step.raw());  // on the CPU
    if (!s.accepted) return;
    const Tensor u = p.states[0];
    axpby_kernel({p.gradients, u, u, s.clip, 0.9f}, ctx);
    axpby_kernel({u, p.values, p.values, -s.lr, 1}, ctx);
  }
};

class DistToyOptimizer : public testing::Test {
 protected:
  void SetUp() override {
    optimizer_kinds()["momentum"] = [](const OptimizerConfig&, std::uint64_t) { return std::make_unique<Momentum>(); };
  }
  void TearDown() override {
    optimizer_kinds().erase("momentum");
    std::filesystem::remove_all(folder_);
  }
  static TrainingOptions options(int steps, std::vector<std::string> more = {}) {
    TrainingOptions o;
    o.steps = steps;
    o.overrides = {"optimizer.kind=momentum", "optimizer.lr=0.05", "schedule.kind=constant", "schedule.warmup_steps=0"};
    o.overrides.insert(o.overrides.end(), more.begin(), more.end());
    return o;
  }
  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("ringmaster-toy-" + std::to_string(getpid()))).string();
};

TEST_F(DistToyOptimizer, TrainsAndItsStateIsSaved) {
  const Training whole = train_on_ranks(options(8));
  ASSERT_EQ(whole.errors, "");
  EXPECT_LT(whole.losses.back(), whole.losses.front() - 0.05);
  EXPECT_TRUE(whole.tensors.contains("optimizer.u.head.weight"));
  EXPECT_FALSE(whole.tensors.contains("optimizer.m.head.weight"));
  TrainingOptions half = options(4);
  half.save = folder_;
  const Training first = train_on_ranks(half);
  ASSERT_EQ(first.errors, "");
  TrainingOptions rest = options(4);
  rest.load = first.checkpoint;
  const Training second = train_on_ranks(rest);
  ASSERT_EQ(second.errors, "");
  EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 4, whole.losses.end()));
  EXPECT_EQ(second.tensors, whole.tensors);
}

TEST_F(DistToyOptimizer, IsShardedLikeAnyOther) {
  const Training alone = train_on_ranks(options(4));
  ASSERT_EQ(alone.errors, "");
  for (const char* zero : {"parallel.zero=1", "parallel.zero=2", "parallel.zero=3"}) {
    TrainingOptions o = options(4, {zero, "train.micro_batch=2"});
    o.ranks = 2;
    const Training shared = train_on_ranks(o);
    ASSERT_EQ(shared.errors, "") << zero;
    EXPECT_LT(largest_difference(alone, shared), 1e-4) << zero;
  }
}

TEST_F(DistToyOptimizer, ItsStateMayBeOffloaded) {
  const Training here = train_on_ranks(options(4));
  const Training away = train_on_ranks(options(4, {"optimizer.offload=states", "optimizer.offload_chunk_bytes=10000"}));
  ASSERT_EQ(here.errors + away.errors, "");
  EXPECT_TRUE(same_bits(here, away));
  EXPECT_NE(away.memory[0].find("on the host"), std::string::npos) << away.memory[0];
}

TEST_F(DistToyOptimizer, IsNamedIfTheKindIsUnknown) {
  Config config = tiny_config();
  try {
    override_config(config, {"optimizer.kind=momentun"});
    FAIL() << "taken";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("momentum"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace ring::test
