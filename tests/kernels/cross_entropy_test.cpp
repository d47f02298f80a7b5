#include "kernels/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/values.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

Tensor tensor(const Shape& shape, const Values& v, const ExecContext& ctx) {
  return make_tensor(shape, DType::f32, v, ctx);
}
Tensor targets(const Values& v, const ExecContext& ctx) {
  return make_tensor({static_cast<std::int64_t>(v.size())}, DType::i32, v, ctx);
}

TEST(CrossEntropy, WithoutGradientLeavesTheLogits) {
  const ExecContext ctx = poisoned_context(1);
  const Values v = random_values("logits", 5 * 37);
  const Tensor logits = tensor({5, 37}, v, ctx), loss = ctx.empty({5});
  const Values before = read_values(logits);
  const CrossEntropy args{.logits = logits,
                          .targets = targets({0, 36, 5, kIgnoreTarget, 7}, ctx),
                          .loss = loss,
                          .vocab = 37,
                          .gradient = false};
  cross_entropy_kernel(args, ctx);
  EXPECT_EQ(read_values(logits), before);
  const Values alone = read_values(loss);
  CrossEntropy with = args;
  with.gradient = true;
  cross_entropy_kernel(with, ctx);
  EXPECT_EQ(read_values(loss), alone) << "the loss depends on whether gradients are wanted";
}

TEST(CrossEntropy, PaddingColumnsAreNeverRead) {
  const ExecContext ctx = poisoned_context(1);
  const Tensor logits = tensor({1, 5}, {1, 2, 3, kInfinity, std::nan("")}, ctx), loss = ctx.empty({1});
  cross_entropy_kernel({.logits = logits, .targets = targets({1}, ctx), .loss = loss, .vocab = 3}, ctx);
  EXPECT_NEAR(read_values(loss)[0], std::log(std::exp(1) + std::exp(2) + std::exp(3)) - 2, 1e-6);
  EXPECT_EQ(read_values(logits)[3], 0);
  EXPECT_EQ(read_values(logits)[4], 0);
}

TEST(CrossEntropy, HugeLogitsStayFinite) {
  const ExecContext ctx = poisoned_context(1);
  const Tensor logits = tensor({2, 3}, {3e38, -3e38, 0, -1e5, -1e5, -1e5}, ctx), loss = ctx.empty({2});
  cross_entropy_kernel({.logits = logits, .targets = targets({0, 2}, ctx), .loss = loss, .vocab = 3}, ctx);
  EXPECT_EQ(read_values(loss)[0], 0);
  EXPECT_NEAR(read_values(loss)[1], std::log(3.0), 0.01);
  for (double g : read_values(logits)) EXPECT_TRUE(std::isfinite(g));
  EXPECT_NEAR(read_values(logits)[5], 1.0 / 3 - 1, 1e-6);
}

TEST(CrossEntropy, NaNShowsInTheLoss) {
  const ExecContext ctx = poisoned_context(1);
  const Tensor logits = tensor({2, 40}, Values(80, 1.0), ctx), loss = ctx.empty({2});
  logits.data<float>()[55] = std::nanf("");
  cross_entropy_kernel({.logits = logits, .targets = targets({3, 4}, ctx), .loss = loss, .vocab = 40}, ctx);
  EXPECT_NEAR(read_values(loss)[0], std::log(40.0), 1e-5);
  EXPECT_TRUE(std::isnan(read_values(loss)[1]));
}

TEST(CrossEntropy, NamesATargetOutsideOfTheVocabulary) {
  const ExecContext ctx = poisoned_context(2);
  for (double bad : {-1.0, 37.0, 40.0, -101.0}) {
    const CrossEntropy args{
        .logits = ctx.zeros({3, 40}), .targets = targets({0, 1, bad}, ctx), .loss = ctx.empty({3}), .vocab = 37};
    try {
      cross_entropy_kernel(args, ctx);
      ADD_FAILURE() << "target " << bad << " was taken";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(str("target ", bad, " at position 2")), std::string::npos) << e.what();
    }
  }
}

TEST(CrossEntropy, AVocabularyThatDoesNotFitIsRefused) {
  const ExecContext ctx = poisoned_context(1);
  for (std::int64_t vocab : {0, 9}) {
    const CrossEntropy args{
        .logits = ctx.zeros({1, 8}), .targets = targets({0}, ctx), .loss = ctx.empty({1}), .vocab = vocab};
    EXPECT_THROW(cross_entropy_kernel(args, ctx), Error) << vocab;
  }
}

}  // namespace
}  // namespace ring::test
