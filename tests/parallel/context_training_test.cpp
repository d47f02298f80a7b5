// The real trainer with sequences sharded among ranks, against one process.

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "comm/gloo/gloo.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

struct Kind {
  std::string name;
  std::vector<std::string> overrides;
};
void PrintTo(const Kind& k, std::ostream* out) { *out << k.name; }

const std::vector<Kind>& context_kinds() {
  static const std::vector<Kind> all = {
      {"dense", {}},
      {"learned_packed", {"model.positions=learned", "data.packing.documents=true"}},
      {"window", {"model.attention.kind=window", "model.attention.window=24", "model.attention.sinks=2"}},
      {"dilated",
       {"model.attention.kind=dilated", "model.attention.segments=[16,64,128]", "model.attention.rates=[1,2,4]"}},
      {"block_sparse",
       {"model.attention.kind=block_sparse", "model.attention.rules=[{pattern: local_global, local: 1, first: 1}]",
        "model.attention.block=64"}}};
  return all;
}

TrainingOptions options_of(const Kind& kind) {
  TrainingOptions o;
  o.steps = 20;
  o.overrides = {"model.context=128",  "model.dropout=0.1",   "model.attention_dropout=0.2",
                 "train.batch_size=4", "train.micro_batch=2", "train.mlp_chunk=50"};
  o.overrides.insert(o.overrides.end(), kind.overrides.begin(), kind.overrides.end());
  o.validate = true;
  return o;
}

const Training& on_one(const Kind& kind) {
  static std::map<std::string, Training> known;
  if (!known.count(kind.name)) known[kind.name] = train_on_ranks(options_of(kind));
  return known[kind.name];
}

// Bounds for f32 sums in a different order after 20 steps of AdamW, for any degree.
constexpr double kContextLoss = 2e-5, kContextWeights = 5e-3;

class DistContextTraining : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
  static Training run(const std::string& schedule, int cp, int ranks, int per_node = 0) {
    TrainingOptions o = options_of(GetParam());
    o.ranks = ranks;
    o.overrides.push_back("parallel.cp=" + std::to_string(cp));
    o.overrides.push_back("parallel.cp_schedule=" + schedule);
    o.overrides.push_back("parallel.cp_ranks_per_node=" + std::to_string(per_node));
    return train_on_ranks(o);
  }
  static void expect_near(const Training& got) {
    const Training& one = on_one(GetParam());
    ASSERT_EQ(one.errors, "");
    ASSERT_EQ(got.errors, "");
    EXPECT_LT(one.losses.back(), one.losses.front());
    EXPECT_LE(largest_loss_difference(one, got), kContextLoss);
    EXPECT_LE(largest_difference(one, got), kContextWeights);
    EXPECT_LE(std::abs(one.validation - got.validation), kContextLoss * one.validation);
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, DistContextTraining, testing::ValuesIn(context_kinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DistContextTraining, RingsOfTwoAndOfFourEqualOneProcess) {
  const Training two = run("ring", 2, 2);
  expect_near(two);
  EXPECT_TRUE(same_bits(two, run("ring", 2, 2)));
  expect_near(run("ring", 4, 4));
}
TEST_P(DistContextTraining, GatherEqualsOneProcess) { expect_near(run("gather", 2, 2)); }
TEST_P(DistContextTraining, AllToAllEqualsOneProcess) { expect_near(run("all_to_all", 2, 2)); }
TEST_P(DistContextTraining, HybridEqualsOneProcess) { expect_near(run("hybrid", 4, 4, 2)); }
TEST_P(DistContextTraining, TwoReplicasWithRingsEqualOneProcess) { expect_near(run("ring", 2, 4)); }

}  // namespace
}  // namespace ring::test
