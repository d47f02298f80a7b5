#include "kernels/cpu/vec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace ring::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Returns the largest |got - want| / max(|want|, floor) over a fine grid.
template <class F, class G>
double worst_error(float from, float to, double floor, F got, G want) {
  double worst = 0;
  constexpr int steps = 200000;
  for (int i = 0; i <= steps; ++i) {
    const float x = from + (to - from) * static_cast<float>(i) / steps;
    const double expected = want(static_cast<double>(x));
    if (got(x) == expected) continue;  // also if both are 0
    const double error = std::abs(got(x) - expected) / std::max(std::abs(expected), floor);
    if (std::isnan(error)) return error;
    worst = std::max(worst, error);
  }
  return worst;
}

TEST(Vec, ExpIsAccurateOverItsRange) {
  auto want = [](double x) { return std::exp(x); };
  EXPECT_LT(worst_error(-87, 88, 0, exp_fast, want), 2e-7);
  EXPECT_LT(worst_error(-1, 1, 0, exp_fast, want), 2e-7);
  EXPECT_LT(worst_error(-110, -87, 1e-38, exp_fast, want), 2e-7);
}

TEST(Vec, ExpIsExactAtTheEnds) {
  EXPECT_EQ(exp_fast(0.0f), 1.0f);
  EXPECT_EQ(exp_fast(-kInfinity), 0.0f);
  EXPECT_EQ(exp_fast(-1000.0f), 0.0f);
  EXPECT_EQ(exp_fast(kInfinity), kInfinity);
  EXPECT_EQ(exp_fast(89.0f), kInfinity);
  EXPECT_TRUE(std::isfinite(exp_fast(88.7f)));
  EXPECT_TRUE(std::isnan(exp_fast(kNaN)));
}

TEST(Vec, TanhAndSigmoidAreAccurate) {
  EXPECT_LT(worst_error(-20, 20, 0, tanh_fast, [](double x) { return std::tanh(x); }), 4e-7);
  EXPECT_LT(worst_error(-1, 1, 1e-30, tanh_fast, [](double x) { return std::tanh(x); }), 4e-7);
  EXPECT_LT(worst_error(-80, 80, 0, sigmoid_fast, [](double x) { return 1 / (1 + std::exp(-x)); }), 4e-7);
  EXPECT_EQ(tanh_fast(kInfinity), 1.0f);
  EXPECT_EQ(tanh_fast(-kInfinity), -1.0f);
  EXPECT_TRUE(std::isnan(tanh_fast(kNaN)));
  EXPECT_TRUE(std::isnan(sigmoid_fast(kNaN)));
}

TEST(Vec, TheNormalDistributionIsAccurate) {
  auto cdf = [](double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); };
  auto slope = [&](double x) { return cdf(x) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi); };
  EXPECT_LT(worst_error(-12, 12, 1, normal_cdf_fast, cdf), 3e-7);  // 2e-7 with fused multiply-adds
  EXPECT_LT(worst_error(-12, 12, 1, gelu_slope_fast, slope), 4e-7);
  EXPECT_LT(worst_error(-0.01f, 0.01f, 1, gelu_slope_fast, slope), 2e-7);
  for (auto f : {normal_cdf_fast, gelu_slope_fast}) {
    EXPECT_EQ(f(-1e10f), 0.0f);
    EXPECT_EQ(f(-5.95f), 0.0f);
    EXPECT_NEAR(f(1e10f), 1.0f, 2e-7f);
    EXPECT_EQ(f(0.0f), 0.5f);
    EXPECT_TRUE(std::isnan(f(kNaN)));
  }
}

TEST(Vec, RotationsAreAccurate) {
  auto cosine = [](double t) { return std::cos(2 * std::numbers::pi * t); };
  auto sine = [](double t) { return std::sin(2 * std::numbers::pi * t); };
  EXPECT_LT(worst_error(
                -0.5f, 0.5f, 1, [](float t) { return rotation_fast(t).cos; }, cosine),
            2e-7);
  EXPECT_LT(worst_error(
                -0.5f, 0.5f, 1, [](float t) { return rotation_fast(t).sin; }, sine),
            2e-7);
}

TEST(Vec, ReductionsAcceptEveryLength) {
  for (std::int64_t n = 0; n <= 130; ++n) {
    std::vector<float> x(static_cast<std::size_t>(n)), y(x.size());
    double want = 0;
    float largest = -kInfinity;
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = std::sin(static_cast<float>(i * 7 + 1));
      y[i] = std::cos(static_cast<float>(i * 3));
      want += static_cast<double>(x[i]) * y[i];
      largest = std::max(largest, x[i]);
    }
    EXPECT_NEAR(dot(x.data(), y.data(), n), want, 1e-5) << n;
    EXPECT_EQ(max_of(n, [&](std::int64_t i) { return x[static_cast<std::size_t>(i)]; }), largest) << n;
  }
}

}  // namespace
}  // namespace ring::cpu
