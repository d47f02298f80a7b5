#include "core/quantile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ring {
namespace {

TEST(Quantile, IsTheNearestRank) {
  EXPECT_EQ(quantile({7}, 0.5), 7);
  EXPECT_EQ(quantile({2, 1}, 0.5), 1);  // the smaller of two
  EXPECT_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(quantile({3, 1, 2}, 1), 3);
  EXPECT_EQ(quantile({3, 1, 2}, 1e-9), 1);
}

TEST(Quantile, IsExceededByAtMostItsShare) {
  std::mt19937 random(5);
  for (int n = 1; n < 200; ++n) {
    std::vector<double> values(static_cast<std::size_t>(n));
    for (double& v : values) v = static_cast<double>(random() % 50);
    const double q = quantile(values, 0.99);
    const auto above = std::ranges::count_if(values, [&](double v) { return v > q; });
    const auto from = std::ranges::count_if(values, [&](double v) { return v >= q; });
    EXPECT_LE(static_cast<double>(above), 0.01 * n);
    EXPECT_GT(static_cast<double>(from), 0.01 * n);
  }
}

TEST(Median, IsTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({4}), 4);
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({8, 1, 2, 4}), 3);
}

}  // namespace
}  // namespace ring
