// Moving averages against the recurrence in f64, on every available backend.
#include "kernels/moving_average.h"

#include <gtest/gtest.h>

#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/step_state_tensor.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

constexpr double kDecay = 0.9;

Values filled(const std::string& name, std::int64_t n) {
  Values v = random_values(name, n);
  for (double& x : v) x = static_cast<double>(static_cast<float>(x));
  return v;
}

// left: elements before the first one, to make addresses unaligned.
void expect_recurrence(const ExecContext& ctx, std::int64_t n, std::int64_t left) {
  const auto place = [&](const Values& v) {
    Values all(static_cast<std::size_t>(left), 7.0);
    all.insert(all.end(), v.begin(), v.end());
    return make_tensor({n + left}, DType::f32, all, ctx);
  };
  Values want = filled("start", n);
  const Tensor whole = place(want);
  for (std::uint32_t step = 0; step < 120; ++step) {
    const Values values = filled(str("values", step), n);
    const Tensor now = place(values);
    moving_average_kernel({now.narrow(0, left, n), whole.narrow(0, left, n), state_tensor({.step = step}, ctx), kDecay},
                          ctx);
    const double d = std::min(kDecay, (1.0 + step) / (10.0 + step));  // kDecay from step 80 on
    for (std::size_t i = 0; i < want.size(); ++i) want[i] = d * want[i] + (1 - d) * values[i];
  }
  const Values got = read_values(whole, ctx);
  for (std::int64_t i = 0; i < left; ++i) EXPECT_EQ(got[static_cast<std::size_t>(i)], 7.0);
  for (std::int64_t i = 0; i < n; ++i)
    EXPECT_NEAR(got[static_cast<std::size_t>(i + left)], want[static_cast<std::size_t>(i)], 2e-6) << i;
}

void expect_untouched_by_a_bad_step(const ExecContext& ctx) {
  const Values before = filled("average", 1000);
  const Tensor average = make_tensor({1000}, DType::f32, before, ctx);
  const Tensor values = make_tensor({1000}, DType::f32, filled("values", 1000), ctx);
  moving_average_kernel({values, average, state_tensor({.step = 3, .accepted = 0}, ctx), kDecay}, ctx);
  EXPECT_EQ(read_values(average, ctx), before);
}

TEST(MovingAverage, IsTheRecurrence) {
  for (const int threads : {1, 3})
    for (const std::int64_t n : {1, 37, 20003}) expect_recurrence(poisoned_context(threads), n, 0);
}

TEST(MovingAverage, ABadStepLeavesIt) { expect_untouched_by_a_bad_step(poisoned_context(2)); }

TEST(MovingAverage, OtherLengthsAreRefused) {
  const ExecContext ctx = poisoned_context(1);
  EXPECT_THROW(moving_average_kernel({ctx.zeros({4}), ctx.zeros({5}), state_tensor({}, ctx), kDecay}, ctx), Error);
}

class GpuMovingAverage : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(GpuMovingAverage, IsTheRecurrence) {
  const ExecContext ctx = poisoned_device_context({Backend::cuda, 0});
  for (const std::int64_t n : {1, 4, 37, 100003})
    for (const std::int64_t left : {0, 1}) expect_recurrence(ctx, n, left);
}

TEST_F(GpuMovingAverage, ABadStepLeavesIt) {
  expect_untouched_by_a_bad_step(poisoned_device_context({Backend::cuda, 0}));
}

}  // namespace
}  // namespace ring::test
