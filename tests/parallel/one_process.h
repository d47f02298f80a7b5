#pragma once
// A layout against one process that trains with the same settings and keeps all activations.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/parallel/training.h"

namespace ring::test {

// Sums in f32 in another order; whatever the layout.
inline constexpr double kLoss = 1e-5, kWeights = 2e-3;

// options(ranks, overrides): the run.
template <class Options>
void expect_equal_to_one_process(const Layout& layout, const Options& options) {
  std::vector<std::string> alone;
  for (const std::string& o : layout.overrides)
    if (!o.starts_with("parallel.") && !o.starts_with("train.recompute")) alone.push_back(o);
  const Training one = train_on_ranks(options(1, alone)),
                 many = train_on_ranks(options(layout.ranks, layout.overrides));
  ASSERT_EQ(one.errors + many.errors, "");
  EXPECT_LT(one.losses.back(), one.losses.front());
  EXPECT_LE(largest_loss_difference(one, many), kLoss);
  EXPECT_LE(largest_difference(one, many), kWeights);
  EXPECT_LE(std::abs(one.validation - many.validation), kLoss * one.validation);
}

}  // namespace ring::test
