// Layouts with several parallel axes: the real trainer on four ranks against one process, for every kind of attention.

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "comm/gloo/gloo.h"
#include "tests/parallel/one_process.h"

namespace ring::test {
namespace {

struct Named {
  std::string name;
  std::vector<std::string> overrides;
};
void PrintTo(const Named& n, std::ostream* out) { *out << n.name; }

const std::vector<Named>& kinds() {
  static const std::vector<Named> all = {
      {"dense", {}},
      {"window",
       {"model.attention.kind=window", "model.attention.window=24", "model.attention.sinks=2",
        "model.learned_sinks=true"}},
      {"dilated",
       {"model.attention.kind=dilated", "model.attention.segments=[16,64,128]", "model.attention.rates=[1,2,4]"}},
      {"block_sparse",
       {"model.attention.kind=block_sparse", "model.attention.rules=[{pattern: random, density: 0.5}]",
        "model.attention.block=64"}}};
  return all;
}

const std::vector<Named>& layouts() {
  static const std::vector<Named> all = {
      {"tp2_cp2", {"parallel.tp=2", "parallel.cp=2"}},
      {"tp2_cp2_gather", {"parallel.tp=2", "parallel.cp=2", "parallel.cp_schedule=gather"}},
      {"tp2_zero3", {"parallel.tp=2", "parallel.zero=3"}},
      {"cp2_zero1", {"parallel.cp=2", "parallel.zero=1"}},
      {"cp2_zero3", {"parallel.cp=2", "parallel.zero=3"}},
      {"cp4_zero2_by_node", {"parallel.cp=4", "parallel.zero=2", "parallel.cp_ranks_per_node=2"}},
      {"cp4_zero3_hybrid",
       {"parallel.cp=4", "parallel.zero=3", "parallel.cp_schedule=hybrid", "parallel.cp_ranks_per_node=2"}}};
  return all;
}

// Four KV heads, so that each of two slices has two; dropout, gradient accumulation, tied embeddings.
Training run(const Named& kind, const std::vector<std::string>& layout, int ranks) {
  TrainingOptions o;
  o.ranks = ranks;
  o.steps = 6;
  o.overrides = {"model.context=128",          "model.heads=8",       "model.kv_heads=4",
                 "model.head_dim=8",           "model.dropout=0.1",   "train.batch_size=4",
                 "model.tied_embeddings=true", "train.micro_batch=2", "model.attention_dropout=0.2"};
  o.overrides.insert(o.overrides.end(), kind.overrides.begin(), kind.overrides.end());
  o.overrides.insert(o.overrides.end(), layout.begin(), layout.end());
  o.validate = true;
  return train_on_ranks(o);
}

const Training& on_one(const Named& kind) {
  static std::map<std::string, Training> known;
  if (!known.count(kind.name)) known[kind.name] = run(kind, {}, 1);
  return known[kind.name];
}

class DistLayouts : public testing::TestWithParam<std::tuple<Named, Named>> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(All, DistLayouts, testing::Combine(testing::ValuesIn(kinds()), testing::ValuesIn(layouts())),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
                         });

TEST_P(DistLayouts, EqualsOneProcess) {
  const auto& [kind, layout] = GetParam();
  const Training &one = on_one(kind), many = run(kind, layout.overrides, 4);
  ASSERT_EQ(one.errors, "");
  ASSERT_EQ(many.errors, "");
  EXPECT_LT(one.losses.back(), one.losses.front());
  EXPECT_LE(largest_loss_difference(one, many), kLoss);
  EXPECT_LE(largest_difference(one, many), kWeights);
  EXPECT_LE(std::abs(one.validation - many.validation), kLoss * one.validation);
}

}  // namespace
}  // namespace ring::test
