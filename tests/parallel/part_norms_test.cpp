// Norms of the model's parts in every layout: equal to one process, and together the norm of the whole gradient.

#include <gtest/gtest.h>

#include <cmath>

#include "comm/gloo/gloo.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

Training run_norms(const std::vector<std::string>& layout, int ranks) {
  TrainingOptions o;
  o.ranks = ranks;
  o.steps = 4;
  o.overrides = {"model.heads=8",      "model.kv_heads=4",     "model.head_dim=8",    "model.tied_embeddings=true",
                 "train.batch_size=8", "train.log_interval=2", "train.micro_batch=1", "model.biases=all"};
  o.overrides.insert(o.overrides.end(), layout.begin(), layout.end());
  return train_on_ranks(o);
}

class DistPartNorms : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(
    All, DistPartNorms,
    testing::Values(Layout{"dp2_zero0", 2, {"parallel.zero=0"}}, Layout{"dp4_zero1", 4, {"parallel.zero=1"}},
                    Layout{"dp4_zero2", 4, {"parallel.zero=2"}}, Layout{"dp2_zero3", 2, {"parallel.zero=3"}},
                    Layout{"tp2", 2, {"parallel.tp=2"}}, Layout{"tp2_zero3", 4, {"parallel.tp=2", "parallel.zero=3"}},
                    Layout{"cp2_zero1", 4, {"parallel.cp=2", "parallel.zero=1"}},
                    Layout{"tp2_cp2_zero0", 4, {"parallel.tp=2", "parallel.cp=2"}}),
    [](const auto& info) { return info.param.name; });

TEST_P(DistPartNorms, EqualOneProcess) {
  static const Training one = run_norms({}, 1);
  const Training many = run_norms(GetParam().overrides, GetParam().ranks);
  ASSERT_EQ(one.errors, "");
  ASSERT_EQ(many.errors, "");
  for (const std::size_t step : {0u, 2u}) EXPECT_TRUE(many.part_norms.at(step).empty()) << "not logged";
  for (const std::size_t step : {1u, 3u}) {
    const std::vector<double>&a = one.part_norms.at(step), &b = many.part_norms.at(step);
    ASSERT_EQ(a.size(), 4u) << "embedding, two blocks, final norm";
    ASSERT_EQ(b.size(), a.size());
    double squares = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_GT(a[i], 0);
      EXPECT_NEAR(b[i], a[i], 1e-4 * a[i]) << "part " << i << " in step " << step + 1;
      squares += b[i] * b[i];
    }
    EXPECT_NEAR(std::sqrt(squares), many.norms[step], 1e-6 * many.norms[step]);
  }
}

}  // namespace
}  // namespace ring::test
