// Scores of requests are the same in every layout.
#include <gtest/gtest.h>

#include <cmath>

#include "comm/gloo/gloo.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

Training run_scored(const Layout& layout, const std::string& attention) {
  TrainingOptions o;
  o.ranks = layout.ranks;
  o.steps = 3;
  o.overrides = {"model.context=64", "model.kv_heads=4", "train.batch_size=8", "train.micro_batch=2", attention};
  o.overrides.insert(o.overrides.end(), layout.overrides.begin(), layout.overrides.end());
  o.score = true;
  return train_on_ranks(o);
}

class DistScores : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, DistScores,
                         testing::Values(Layout{"dp2", 2, {}}, Layout{"dp4_zero3", 4, {"parallel.zero=3"}},
                                         Layout{"cp2", 2, {"parallel.cp=2"}}, Layout{"tp2", 2, {"parallel.tp=2"}},
                                         Layout{"dp2_tp2_zero3", 4, {"parallel.tp=2", "parallel.zero=3"}},
                                         Layout{"cp2_tp2", 4, {"parallel.cp=2", "parallel.tp=2"}}),
                         [](const auto& info) { return info.param.name; });

TEST_P(DistScores, EqualOneProcess) {
  for (const char* attention :
       {"model.attention={kind: dense}", "model.attention={kind: dilated, segments: [8, 32], rates: [1, 2]}"}) {
    const Training one = run_scored({"one", 1, {}}, attention), many = run_scored(GetParam(), attention);
    ASSERT_EQ(one.errors, "");
    ASSERT_EQ(many.errors, "");
    ASSERT_EQ(one.scores.size(), 46u);
    ASSERT_EQ(many.scores.size(), 46u);
    for (std::size_t i = 0; i < 23; ++i) {
      EXPECT_NEAR(one.scores[i], many.scores[i], 1e-4 * (1 + std::abs(one.scores[i]))) << attention << " " << i;
      EXPECT_LT(one.scores[i], 0);
    }
    EXPECT_TRUE(std::equal(one.scores.begin() + 23, one.scores.end(), many.scores.begin() + 23)) << attention;
  }
}

}  // namespace
}  // namespace ring::test
