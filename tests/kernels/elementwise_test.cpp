#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/values.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

TEST(Axpby, OutMayBeEitherInput) {
  const ExecContext ctx = poisoned_context(2);
  for (std::int64_t n : {1, 37, 100000}) {
    const Tensor x = random_tensor("x", {n}, ctx), y = random_tensor("y", {n}, ctx);
    Values want = read_values(x);
    const Values second = read_values(y);
    for (std::size_t i = 0; i < want.size(); ++i)
      want[i] = static_cast<float>(2.0 * want[i] - 0.5 * second[i]);  // exact in f64, so rounded once, as with an FMA
    const Tensor a = random_tensor("x", {n}, ctx), b = random_tensor("y", {n}, ctx);
    axpby_kernel({.x = a, .y = y, .out = a, .alpha = 2, .beta = -0.5f}, ctx);
    axpby_kernel({.x = x, .y = b, .out = b, .alpha = 2, .beta = -0.5f}, ctx);
    EXPECT_EQ(read_values(a), want);
    EXPECT_EQ(read_values(b), want);
  }
}

TEST(Axpby, WithoutASecondOperandScales) {
  const ExecContext ctx = poisoned_context(2);
  const Tensor x = random_tensor("x", {1000}, ctx), out = ctx.empty({1000});
  axpby_kernel({.x = x, .out = out, .alpha = -3}, ctx);
  Values want = read_values(x);
  for (double& v : want) v = static_cast<float>(-3 * v);
  EXPECT_EQ(read_values(out), want);
  axpby_kernel({.x = x, .y = ctx.empty({1000}), .out = out, .alpha = -3, .beta = 0}, ctx);
  EXPECT_EQ(read_values(out), want) << "beta = 0 read y";
}

TEST(Axpby, AThirdOperandIsAdded) {
  const ExecContext ctx = poisoned_context(2);
  for (std::int64_t n : {1, 37, 100000}) {
    const Tensor x = random_tensor("x", {n}, ctx), y = random_tensor("y", {n}, ctx), z = random_tensor("z", {n}, ctx);
    Values want = read_values(x);
    const Values second = read_values(y), third = read_values(z);
    for (std::size_t i = 0; i < want.size(); ++i) want[i] = 2 * want[i] - 0.5 * second[i] + third[i];
    axpby_kernel({.x = x, .y = y, .out = y, .alpha = 2, .beta = -0.5f, .z = z}, ctx);
    const Values got = read_values(y);
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6) << i;
    EXPECT_EQ(read_values(z), third);
  }
}

TEST(Axpby, OtherShapesAreRefused) {
  const ExecContext ctx = poisoned_context(1);
  EXPECT_THROW(axpby_kernel({.x = ctx.zeros({3}), .out = ctx.zeros({4})}, ctx), Error);
  EXPECT_THROW(axpby_kernel({.x = ctx.zeros({4}), .y = ctx.zeros({5}), .out = ctx.zeros({4}), .beta = 1}, ctx), Error);
  EXPECT_THROW(axpby_kernel({.x = ctx.zeros({4}), .out = ctx.zeros({4}), .beta = 1}, ctx), Error);
  const Tensor four = ctx.zeros({4}), five = ctx.zeros({5});
  EXPECT_THROW(axpby_kernel({.x = four, .y = four, .out = four, .beta = 1, .z = five}, ctx), Error);
  EXPECT_THROW(axpby_kernel({.x = four, .out = four, .z = four}, ctx), Error);
}

TEST(RandomNormal, APartHasTheValuesOfTheWhole) {
  const ExecContext ctx = poisoned_context(2);
  const RandomSite site{.seed = 7, .step = 0, .site = 3};
  const Tensor whole = ctx.empty({5000}), part = ctx.empty({3000});
  random_normal_kernel({.out = whole, .site = site, .std = 0.5f}, ctx);
  random_normal_kernel({.out = part, .site = site, .std = 0.5f, .first_element = 1998}, ctx);
  EXPECT_EQ(read_values(part), read_values(whole.narrow(0, 1998, 3000)));
  EXPECT_THROW(random_normal_kernel({.out = part, .site = site, .first_element = 3}, ctx), Error);
}

// Returns dropout of ones: 0 if dropped, 1 / (1 - rate) if kept.
Values mask(std::int64_t n, float rate, std::int64_t first, const RandomSite& site, int threads) {
  const ExecContext ctx = poisoned_context(threads);
  const Tensor x = make_tensor({n}, DType::f32, Values(static_cast<std::size_t>(n), 1.0), ctx), out = ctx.empty({n});
  dropout_kernel({.x = x, .out = out, .rate = rate, .site = site, .first_element = first}, ctx);
  return read_values(out);
}

TEST(DropoutMask, HasItsRate) {
  constexpr std::int64_t n = 400000;
  for (float rate : {0.1f, 0.5f, 0.9f}) {
    const Values m = mask(n, rate, 0, {.seed = 3, .step = 1, .site = 9}, 2);
    double kept = 0, pairs = 0, sum = 0;
    for (std::size_t i = 0; i < m.size(); ++i) {
      kept += m[i] != 0;
      sum += m[i];
      pairs += i > 0 && (m[i] != 0) == (m[i - 1] != 0);
    }
    const double p = 1 - static_cast<double>(rate), same = p * p + (1 - p) * (1 - p);
    EXPECT_NEAR(kept / n, p, 5 * std::sqrt(p * (1 - p) / n)) << rate;
    EXPECT_NEAR(pairs / n, same, 8 * std::sqrt(same * (1 - same) / n)) << "neighbours are not independent at " << rate;
    EXPECT_NEAR(sum / n, 1.0, 5 * std::sqrt((1 - p) / p / n)) << "the expectation is not kept at " << rate;
  }
}

TEST(DropoutMask, DependsOnTheAddressAlone) {
  const RandomSite site{.seed = 3, .step = 1, .site = 9};
  const Values whole = mask(70000, 0.3f, 0, site, 1);
  EXPECT_EQ(mask(70000, 0.3f, 0, site, 2), whole);
  EXPECT_EQ(mask(70000, 0.3f, 0, site, 3), whole);
  for (std::int64_t first : {1, 2, 3, 4, 255, 256, 257, 30001}) {
    const Values part = mask(20000, 0.3f, first, site, 2);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first)) << "from element " << first;
  }
}

TEST(DropoutMask, ChangesWithEveryPartOfTheSite) {
  const RandomSite site{.seed = 3, .step = 1, .site = 9};
  const Values base = mask(1000, 0.5f, 0, site, 1);
  EXPECT_NE(mask(1000, 0.5f, 0, {.seed = 4, .step = 1, .site = 9}, 1), base);
  EXPECT_NE(mask(1000, 0.5f, 0, {.seed = 3, .step = 2, .site = 9}, 1), base);
  EXPECT_NE(mask(1000, 0.5f, 0, {.seed = 3, .step = 1, .site = 8}, 1), base);
  EXPECT_NE(mask(1000, 0.5f, std::int64_t{1} << 34, site, 1), base) << "the upper bits of the element are lost";
}

TEST(DropoutMask, RatesOutsideOfZeroToOneAreRefused) {
  const ExecContext ctx = poisoned_context(1);
  const Tensor x = ctx.zeros({4}), out = ctx.zeros({4});
  for (float rate : {1.0f, -0.1f, std::nanf("")})
    EXPECT_THROW(dropout_kernel({.x = x, .out = out, .rate = rate}, ctx), Error) << rate;
  ring::Run run{.ctx = ctx};
  EXPECT_THROW(dropout_add(run, {x, nullptr}, {}, 1.0f, 0), Error);
  EXPECT_THROW(dropout_add(run, {x, nullptr}, {ctx.zeros({5}), nullptr}, 0.5f, 0), Error);
}

TEST(DropoutOp, RateZeroWithoutResidualIsTheInputItself) {
  const ExecContext ctx = poisoned_context(1);
  Tape tape;
  ring::Run run{.ctx = ctx, .tape = &tape};
  const Var x{ctx.zeros({4, 2}), std::make_shared<GradSlot>()};
  const Var y = dropout_add(run, x, {}, 0.0f, 1);
  EXPECT_EQ(y.slot, x.slot);
  EXPECT_EQ(y.value.raw(), x.value.raw());
  EXPECT_EQ(tape.size(), 0u);
}

}  // namespace
}  // namespace ring::test
