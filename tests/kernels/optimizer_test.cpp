#include "kernels/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/step_state_tensor.h"
#include "tests/kernels/values.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

// Algorithm 2 of the AdamW paper, in f64.
struct AdamReference {
  Values param, m, v;
  void step(const Values& grad, int t, double lr, double decay, double clip, const AdamW& a) {
    const double beta1 = a.beta1, beta2 = a.beta2;
    for (std::size_t i = 0; i < param.size(); ++i) {
      const double g = grad[i] * clip;
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(beta1, t)), v_hat = v[i] / (1 - std::pow(beta2, t));
      param[i] -= lr * (m_hat / (std::sqrt(v_hat) + static_cast<double>(a.eps)) + decay * param[i]);
    }
  }
};

void compare_with_reference(std::int64_t n, int threads, AdamW args) {
  const ExecContext ctx = poisoned_context(threads);
  args.param = random_tensor("param", {n}, ctx);
  args.m = ctx.zeros({n});
  args.v = ctx.zeros({n});
  AdamReference reference{read_values(args.param), Values(static_cast<std::size_t>(n)),
                          Values(static_cast<std::size_t>(n))};
  for (int t = 1; t <= 10; ++t) {
    args.grad = random_tensor(str("grad", t), {n}, ctx, 0.1);
    const StepState s{.step = static_cast<std::uint32_t>(t - 1),
                      .lr = 0.01f / static_cast<float>(t),
                      .decay_scale = 20.0f / static_cast<float>(t),
                      .clip = 0.5f};
    args.state = state_tensor(s, ctx);
    adamw_kernel(args, ctx);
    reference.step(read_values(args.grad), t, static_cast<double>(s.lr) * args.lr_scale,
                   static_cast<double>(args.weight_decay) * 20 / t, 0.5, args);
  }
  EXPECT_LT(relative_error(read_values(args.param), reference.param), 1e-6);
  EXPECT_LT(relative_error(read_values(args.m), reference.m), 1e-6);
  EXPECT_LT(relative_error(read_values(args.v), reference.v), 1e-6);
}

TEST(AdamW, StepsMatchTheReference) {
  compare_with_reference(1, 1, {});
  compare_with_reference(37, 2, {.weight_decay = 0.1f});
  compare_with_reference(100003, 3, {.beta1 = 0.8f, .beta2 = 0.99f, .eps = 1e-3f, .weight_decay = 0.3f, .lr_scale = 3});
}

TEST(AdamW, LateStepsHaveNoBiasCorrection) {
  const ExecContext ctx = poisoned_context(1);
  const StepState s{.step = 4000000000u, .lr = 0.5f};
  AdamW args{.param = make_tensor({1}, DType::f32, {1.0}, ctx),
             .grad = make_tensor({1}, DType::f32, {0.0}, ctx),
             .m = make_tensor({1}, DType::f32, {0.4}, ctx),
             .v = make_tensor({1}, DType::f32, {0.25}, ctx),
             .state = state_tensor(s, ctx),
             .beta1 = 0.5f,
             .beta2 = 1.0f - 0x1p-20f};
  adamw_kernel(args, ctx);
  EXPECT_NEAR(read_values(args.param)[0], 1 - 0.5 * 0.2 / 0.5, 1e-5);
}

TEST(AdamW, AStepThatIsNotFiniteChangesNothing) {
  const ExecContext ctx = poisoned_context(2);
  constexpr std::int64_t n = 20000;
  AdamW args{.param = random_tensor("p", {n}, ctx),
             .grad = random_tensor("g", {n}, ctx),
             .m = random_tensor("m", {n}, ctx),
             .v = random_tensor("v", {n}, ctx),
             .weight_decay = 0.1f};
  args.grad.data<float>()[777] = std::nanf("");
  args.state = state_tensor({.lr = 1}, ctx);
  const Values param = read_values(args.param), m = read_values(args.m), v = read_values(args.v);
  squared_norm_kernel({.x = args.grad, .sum = squared_norm_of(args.state)}, ctx);
  check_and_clip_kernel({.state = args.state, .max_norm = 1}, ctx);
  EXPECT_EQ(read_state(args.state, ctx).accepted, 0u);
  adamw_kernel(args, ctx);
  EXPECT_EQ(read_values(args.param), param);
  EXPECT_EQ(read_values(args.m), m);
  EXPECT_EQ(read_values(args.v), v);
}

TEST(AdamW, OtherLengthsAreRefused) {
  const ExecContext ctx = poisoned_context(1);
  AdamW args{.param = ctx.zeros({4}),
             .grad = ctx.zeros({4}),
             .m = ctx.zeros({4}),
             .v = ctx.zeros({5}),
             .state = state_tensor({}, ctx)};
  EXPECT_THROW(adamw_kernel(args, ctx), Error);
  args.v = ctx.zeros({4});
  args.state = ctx.zeros({4}, DType::u8);
  EXPECT_THROW(adamw_kernel(args, ctx), Error) << "a state that is too small";
}

TEST(SquaredNorm, AddsUpOverTensors) {
  for (int threads : {1, 2, 3}) {
    const ExecContext ctx = poisoned_context(threads);
    const Tensor state = state_tensor({}, ctx);
    double want = 0;
    for (std::int64_t n : {1, 15, 16, 37, 100003}) {
      const Tensor x = random_tensor(str(n), {n}, ctx);
      for (double v : read_values(x)) want += v * v;
      squared_norm_kernel({.x = x, .sum = squared_norm_of(state)}, ctx);
    }
    EXPECT_NEAR(read_state(state, ctx).squared_norm, want, 1e-6 * want) << threads << " threads";
  }
}

TEST(SquaredNorm, IsAccurateIfFloatSumsAreNot) {
  const ExecContext ctx = poisoned_context(1);
  constexpr std::int64_t n = 1 << 20;
  Values v(n, 1e-4);
  v[0] = 100;
  const Tensor x = make_tensor({n}, DType::f32, v, ctx), state = state_tensor({}, ctx);
  squared_norm_kernel({.x = x, .sum = squared_norm_of(state)}, ctx);
  EXPECT_NEAR(read_state(state, ctx).squared_norm, 1e4 + (n - 1) * 1e-8, 2e-3);
}

StepState clipped(float squared_norm, float max_norm) {
  const ExecContext ctx = poisoned_context(1);
  const Tensor state = state_tensor({.squared_norm = squared_norm, .clip = 77}, ctx);
  check_and_clip_kernel({.state = state, .max_norm = max_norm}, ctx);
  return read_state(state, ctx);
}

TEST(CheckAndClip, ScalesDownToTheLimit) {
  EXPECT_FLOAT_EQ(clipped(16, 1).clip, 0.25f);
  EXPECT_EQ(clipped(0.25f, 1).clip, 1.0f);
  EXPECT_EQ(clipped(0, 1).clip, 1.0f);
  EXPECT_EQ(clipped(1e10f, 0).clip, 1.0f) << "no limit";
  EXPECT_EQ(clipped(1e10f, -1).clip, 1.0f) << "no limit";
  EXPECT_EQ(clipped(16, 1).accepted, 1u);
}

TEST(CheckAndClip, MarksNormsThatAreNotFinite) {
  for (float bad : {std::nanf(""), kInfinity}) {
    EXPECT_EQ(clipped(bad, 1).accepted, 0u) << bad;
    EXPECT_EQ(clipped(bad, 0).accepted, 0u) << bad;
    EXPECT_EQ(clipped(bad, 1).clip, 1.0f) << bad;
  }
}

TEST(CheckAndClip, RefusesNormsAndLossesAboveTheirLimits) {
  const ExecContext ctx = poisoned_context(1);
  const auto accepted = [&](StepState s, float loss) {
    const Tensor state = state_tensor(s, ctx);
    check_and_clip_kernel({.state = state, .loss = from_host<float>({loss}, ctx.stream)}, ctx);
    return read_state(state, ctx).accepted == 1;
  };
  EXPECT_TRUE(accepted({.norm_limit = 4, .squared_norm = 16}, 0));
  EXPECT_FALSE(accepted({.norm_limit = 3.9f, .squared_norm = 16}, 0));
  EXPECT_TRUE(accepted({.loss_scale = 0.5f, .loss_limit = 3}, 6)) << "the limit is of the mean";
  EXPECT_FALSE(accepted({.loss_scale = 0.5f, .loss_limit = 3}, 6.1f));
}

// Once a step has seen the flag, all later steps of this rank are rejected, here and, by their NaN, on other ranks.
TEST(CheckAndClip, RejectsStepsAfterAPeerWasLost) {
  const ExecContext ctx = poisoned_context(1);
  const Tensor state = state_tensor({.loss_scale = 0.5f, .squared_norm = 1}, ctx);
  std::uint32_t lost = 0;
  const auto check = [&] {
    check_and_clip_kernel({.state = state, .max_norm = 1, .peer_lost = &lost}, ctx);
    return read_state(state, ctx);
  };
  EXPECT_EQ(check().accepted, 1u);
  EXPECT_EQ(gradient_scale(check()), 0.5f);
  lost = 1;
  EXPECT_EQ(check().accepted, 0u);
  EXPECT_EQ(check().peer_lost, 1u);
  EXPECT_TRUE(std::isnan(gradient_scale(check())));
  lost = 0;
  EXPECT_EQ(check().accepted, 0u);
}

TEST(CheckAndClip, OverflowOfTheSumIsNotFinite) {
  const ExecContext ctx = poisoned_context(1);
  const Tensor x = make_tensor({2}, DType::f32, {3e19, 3e19}, ctx), state = state_tensor({}, ctx);
  squared_norm_kernel({.x = x, .sum = squared_norm_of(state)}, ctx);
  check_and_clip_kernel({.state = state, .max_norm = 1}, ctx);
  EXPECT_EQ(read_state(state, ctx).accepted, 0u);
}

}  // namespace
}  // namespace ring::test
