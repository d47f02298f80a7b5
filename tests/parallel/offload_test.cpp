// Activations in host memory, in every layout: results are bit-identical, and the expected tensors are offloaded.
#include <gtest/gtest.h>

#include <regex>

#include "comm/gloo/gloo.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

const std::vector<Layout>& offload_layouts() {
  static const std::vector<Layout> all = {
      {"one", 1, {}},
      {"packed", 1, {"data.packing.documents=true", "model.qk_norm=true"}},
      {"content",
       1,
       {"model.context=256", "model.attention.kind=block_sparse", "model.attention.block=64",
        "model.attention.rules=[{pattern: content, keep: 2}]"}},
      {"dp", 2, {}},
      {"zero3", 2, {"parallel.zero=3"}},
      {"cp", 2, {"parallel.cp=2"}},
      {"tp", 2, {"parallel.tp=2"}}};
  return all;
}

class DistOffload : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (GetParam().ranks > 1 && !gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
  static Training train(const std::vector<std::string>& more) {
    const Training t = try_train(more);
    EXPECT_EQ(t.errors, "");
    return t;
  }
  static Training try_train(const std::vector<std::string>& more) {
    TrainingOptions o;
    o.ranks = GetParam().ranks;
    o.steps = 3;
    o.overrides = {"model.context=128", "model.layers=3", "model.dropout=0.1"};
    o.overrides.insert(o.overrides.end(), GetParam().overrides.begin(), GetParam().overrides.end());
    o.overrides.insert(o.overrides.end(), more.begin(), more.end());
    return train_on_ranks(o);
  }
};

TEST_P(DistOffload, GivesTheSameBits) {
  const Training plain = train({"train.recompute=none"});
  for (const char* recompute : {"none", "attention", "mlp", "block", "full"}) {
    const std::string how = std::string("train.recompute=") + recompute;
    const Training kept = train({how}), moved = train({how, "train.activation_offload=true"});
    EXPECT_TRUE(same_bits(plain, kept)) << recompute;
    EXPECT_TRUE(same_bits(kept, moved)) << recompute;
    for (const std::uint64_t bytes : kept.offloaded) EXPECT_EQ(bytes, 0u);
    for (const std::uint64_t bytes : moved.offloaded) EXPECT_GT(bytes, 100'000u) << recompute;
  }
}

// Plans treat blocks differently, depending on memory and time. The minimum of a step is unknown here: budgets below it
// are refused, with the same message on all ranks.
TEST_P(DistOffload, AChosenPlanGivesTheSameBits) {
  const Training plain = train({"train.recompute=none"});
  int trained = 0, moved = 0;
  for (double budget = 40e6; budget > 1e6; budget *= 0.85) {
    const Training chosen =
        try_train({"train.activation_offload_bytes=1e9", "train.memory_budget=" + std::to_string(budget)});
    if (!chosen.errors.empty()) {
      EXPECT_NE(chosen.errors.find("train.memory_budget"), std::string::npos) << chosen.errors;
      break;
    }
    EXPECT_TRUE(same_bits(plain, chosen)) << budget;
    ++trained;
    moved += chosen.offloaded[0] > 0;
  }
  EXPECT_GT(trained, 1);
  EXPECT_GT(moved, 0);
}

// Returns the bytes of "..; it needs 1.25 MiB. Lower ..", rounded up.
double needed_in(const std::string& errors) {
  std::smatch found;
  if (!std::regex_search(errors, found, std::regex("it needs ([0-9.]+) (MiB|bytes)"))) return 0;
  return 1.01 * std::stod(found[1]) * (found[2] == "MiB" ? 1 << 20 : 1);
}

// If not even the inputs of all blocks fit, they are recomputed as well.
TEST_P(DistOffload, RecomputedSegmentsGiveTheSameBits) {
  const auto within = [&](const std::string& budget) {
    return try_train({"model.layers=11", "model.context=256", "train.micro_batch=2", "train.memory_budget=" + budget});
  };
  const Training plain = within("1e9");
  EXPECT_EQ(plain.segments, 0);
  const double least = needed_in(within("1e5").errors);
  ASSERT_GT(least, 1e5);
  for (const double more : {1.0, 1.02}) {
    const Training chosen = within(std::to_string(more * least));
    EXPECT_EQ(chosen.errors, "");
    EXPECT_GT(chosen.segments, 0);
    EXPECT_TRUE(same_bits(plain, chosen)) << more << " with segments: " << chosen.segments;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, DistOffload, testing::ValuesIn(offload_layouts()),
                         [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace ring::test
