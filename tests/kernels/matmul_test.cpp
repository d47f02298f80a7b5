// Every matrix library against a plain triple loop in fp64, through the Matmul slot: transposes, strided operands, odd
// extents, bias, accumulation, thread counts; and arguments that must be refused.

#include "kernels/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "core/philox.h"
#include "kernels/cpu/gemm.h"

namespace ring {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Returns [rows, cols] of uniform numbers in a wider matrix whose other columns are NaN, so that reads or writes of
// these columns are detected.
Tensor strided(std::int64_t rows, std::int64_t cols, std::int64_t padding, std::uint32_t site, const ExecContext& ctx) {
  const Tensor wide = ctx.empty({rows, cols + padding});
  float* p = wide.data<float>();
  for (std::int64_t i = 0; i < wide.numel(); ++i) p[i] = kNaN;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j)
      p[i * (cols + padding) + j] =
          2 * to_uniform(random_bits({1, 0, site}, static_cast<std::uint64_t>(i * cols + j))) - 1;
  return wide.narrow(1, 0, cols);
}

double at(const Tensor& t, std::int64_t i, std::int64_t j) { return t.data<float>()[i * t.stride(0) + j]; }

struct Product {
  std::int64_t m, n, k;
  bool ta = false, tb = false;
  float beta = 0;
  bool bias = false;
  std::int64_t padding = 0;
};

void check_product(const Product& p, const Kernel<Matmul>::Candidate& candidate, int threads) {
  SCOPED_TRACE(str(candidate.name, " ", p.m, "x", p.n, "x", p.k, " ta ", p.ta, " tb ", p.tb, " beta ", p.beta, " bias ",
                   p.bias, " padding ", p.padding, " threads ", threads));
  const ExecContext ctx{Stream::cpu(threads)};
  const Tensor a = p.ta ? strided(p.k, p.m, p.padding, 1, ctx) : strided(p.m, p.k, p.padding, 1, ctx);
  const Tensor b = p.tb ? strided(p.n, p.k, p.padding, 2, ctx) : strided(p.k, p.n, p.padding, 2, ctx);
  const Tensor c = strided(p.m, p.n, p.padding, 3, ctx), before = strided(p.m, p.n, p.padding, 3, ctx);
  const Tensor bias = p.bias ? strided(1, p.n, 0, 4, ctx).view({p.n}) : Tensor{};
  if (p.beta == 0)
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) c.data<float>()[i * c.stride(0) + j] = kNaN;
  candidate.fn({a, b, c, p.ta, p.tb, p.beta, bias}, ctx);
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      double want = (p.beta != 0 ? p.beta * at(before, i, j) : 0) + (p.bias ? bias.data<float>()[j] : 0), size = 1;
      for (std::int64_t x = 0; x < p.k; ++x) {
        const double term = (p.ta ? at(a, x, i) : at(a, i, x)) * (p.tb ? at(b, j, x) : at(b, x, j));
        want += term;
        size += std::abs(term);
      }
      ASSERT_NEAR(at(c, i, j), want, 3e-7 * size) << i << ", " << j;
    }
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = p.n; j < p.n + p.padding; ++j)
      ASSERT_TRUE(std::isnan(at(c, i, j))) << "wrote outside at " << i;
}

TEST(Matmul, EveryLibraryAgreesWithATripleLoop) {
  ASSERT_FALSE(matmul_kernel.candidates(Backend::cpu).empty());
  for (const auto& candidate : matmul_kernel.candidates(Backend::cpu))
    for (int threads : {1, 3})
      for (bool ta : {false, true})
        for (bool tb : {false, true})
          for (const Product& p : {Product{1, 1, 1}, Product{1, 200, 70}, Product{65, 33, 17}, Product{200, 72, 130},
                                   Product{17, 150, 90}, Product{96, 80, 0}, Product{800, 40, 24},
                                   Product{256, 40, 150}}) {
            check_product({p.m, p.n, p.k, ta, tb}, candidate, threads);
            check_product({p.m, p.n, p.k, ta, tb, 1.0f, false, 5}, candidate, threads);
            check_product({p.m, p.n, p.k, ta, tb, 0.5f}, candidate, threads);
            check_product({p.m, p.n, p.k, ta, tb, 0, true, 3}, candidate, threads);
          }
}

TEST(Matmul, StartsFromResidualAndBias) {
  const ExecContext ctx{Stream::cpu(3)};
  constexpr std::int64_t m = 90, n = 70, k = 60;
  const Tensor a = strided(m, k, 0, 1, ctx), b = strided(k, n, 0, 2, ctx), residual = strided(m, n, 7, 3, ctx);
  const Tensor bias = strided(1, n, 0, 4, ctx).view({n});
  for (const auto& candidate : matmul_kernel.candidates(Backend::cpu))
    for (const bool with_bias : {false, true}) {
      const Tensor plain = ctx.empty({m, n}), c = strided(m, n, 3, 5, ctx);
      candidate.fn({.a = a, .b = b, .c = plain}, ctx);
      candidate.fn({.a = a, .b = b, .c = c, .bias = with_bias ? bias : Tensor{}, .residual = residual}, ctx);
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j)
          ASSERT_NEAR(at(c, i, j), at(plain, i, j) + at(residual, i, j) + (with_bias ? bias.data<float>()[j] : 0), 1e-5)
              << candidate.name << ' ' << i << ' ' << j;
    }
}

TEST(Matmul, EmptyProductsDoNothing) {
  const ExecContext ctx{Stream::cpu(2)};
  matmul_kernel({ctx.empty({0, 8}), ctx.empty({8, 4}), ctx.empty({0, 4})}, ctx);
  matmul_kernel({ctx.empty({3, 8}), ctx.empty({8, 0}), ctx.empty({3, 0})}, ctx);
}

TEST(Matmul, TheSameThreadsGiveTheSameBits) {
  const ExecContext ctx{Stream::cpu(3)};
  const Tensor a = strided(300, 200, 0, 1, ctx), b = strided(200, 100, 0, 2, ctx);
  const Tensor first = ctx.empty({300, 100}), again = ctx.empty({300, 100});
  matmul_kernel({a, b, first}, ctx);
  for (int i = 0; i < 5; ++i) {
    matmul_kernel({a, b, again}, ctx);
    ASSERT_EQ(std::memcmp(first.raw(), again.raw(), first.bytes()), 0);
  }
}

double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double gelu_tanh_slope(double x) { return (gelu_tanh(x + 1e-6) - gelu_tanh(x - 1e-6)) / 2e-6; }

TEST(Matmul, TheProductIsActivated) {
  for (const auto& candidate : matmul_kernel.candidates(Backend::cpu))
    for (int threads : {1, 3})
      for (bool with_bias : {false, true}) {
        const ExecContext ctx{Stream::cpu(threads)};
        const Tensor a = strided(65, 17, 0, 1, ctx), b = strided(17, 33, 0, 2, ctx);
        const Tensor bias = with_bias ? strided(1, 33, 0, 3, ctx).view({33}) : Tensor{};
        const Tensor plain = ctx.empty({65, 33}), before = ctx.empty({65, 33}), after = ctx.empty({65, 33});
        candidate.fn({.a = a, .b = b, .c = plain, .bias = bias}, ctx);
        candidate.fn({.a = a, .b = b, .c = after, .bias = bias, .gelu_input = before}, ctx);
        EXPECT_EQ(std::memcmp(before.raw(), plain.raw(), plain.bytes()), 0);
        for (std::int64_t i = 0; i < after.numel(); ++i)
          ASSERT_NEAR(after.data<float>()[i], gelu_tanh(plain.data<float>()[i]), 1e-6) << i;
      }
}

TEST(Matmul, TheProductIsMultipliedByTheActivationsSlope) {
  for (const auto& candidate : matmul_kernel.candidates(Backend::cpu)) {
    const ExecContext ctx{Stream::cpu(2)};
    const Tensor a = strided(65, 17, 0, 1, ctx), b = strided(17, 33, 0, 2, ctx), at = strided(65, 33, 0, 3, ctx);
    const Tensor plain = ctx.empty({65, 33}), out = ctx.empty({65, 33});
    candidate.fn({.a = a, .b = b, .c = plain}, ctx);
    candidate.fn({.a = a, .b = b, .c = out, .gelu_gradient_at = at}, ctx);
    for (std::int64_t i = 0; i < out.numel(); ++i)
      ASSERT_NEAR(out.data<float>()[i], plain.data<float>()[i] * gelu_tanh_slope(at.data<float>()[i]), 3e-6) << i;
  }
}

TEST(Matmul, ActivationsOfSumsAreRefused) {
  const ExecContext ctx{Stream::cpu(1)};
  const Tensor a = ctx.zeros({4, 8}), b = ctx.zeros({8, 6}), c = ctx.zeros({4, 6}), x = ctx.zeros({4, 6});
  const Tensor bias = ctx.zeros({6}), wide = ctx.zeros({4, 7}).narrow(1, 0, 6);
  EXPECT_NO_THROW(matmul_kernel({.a = a, .b = b, .c = c, .bias = bias, .gelu_input = x}, ctx));
  EXPECT_NO_THROW(matmul_kernel({.a = a, .b = b, .c = c, .gelu_gradient_at = x}, ctx));
  EXPECT_THROW(matmul_kernel({.a = a, .b = b, .c = c, .beta = 1, .gelu_input = x}, ctx), Error);
  EXPECT_THROW(matmul_kernel({.a = a, .b = b, .c = c, .residual = ctx.zeros({4, 6}), .gelu_input = x}, ctx), Error);
  EXPECT_THROW(matmul_kernel({.a = a, .b = b, .c = c, .bias = bias, .gelu_gradient_at = x}, ctx), Error);
  EXPECT_THROW(matmul_kernel({.a = a, .b = b, .c = c, .gelu_input = x, .gelu_gradient_at = x}, ctx), Error);
  EXPECT_THROW(matmul_kernel({.a = a, .b = b, .c = c, .gelu_input = ctx.zeros({4, 5})}, ctx), Error);
  EXPECT_THROW(matmul_kernel({.a = a, .b = b, .c = c, .gelu_input = wide}, ctx), Error);
  EXPECT_THROW(matmul_kernel({.a = a, .b = b, .c = wide, .gelu_input = x}, ctx), Error);
}

TEST(Matmul, WrongShapesAreRefused) {
  const ExecContext ctx{Stream::cpu(1)};
  const Tensor a = ctx.zeros({4, 8}), b = ctx.zeros({8, 6}), c = ctx.zeros({4, 6});
  EXPECT_THROW(matmul_kernel({a, ctx.zeros({7, 6}), c}, ctx), Error);
  EXPECT_THROW(matmul_kernel({a, b, ctx.zeros({4, 5})}, ctx), Error);
  EXPECT_THROW(matmul_kernel({a, b, ctx.zeros({6, 4})}, ctx), Error);
  EXPECT_THROW(matmul_kernel({a, b, ctx.zeros({24})}, ctx), Error);
  EXPECT_THROW(matmul_kernel({a, b, c, false, true}, ctx), Error);
  EXPECT_THROW(matmul_kernel({a, b, c, false, false, 0, ctx.zeros({4})}, ctx), Error);
  EXPECT_THROW(matmul_kernel({a, b, c, false, false, 1, ctx.zeros({6})}, ctx), Error);
  EXPECT_THROW(matmul_kernel({a, b, Tensor::zeros({4, 6}, DType::i32, ctx.stream)}, ctx), Error);
  EXPECT_THROW(matmul_kernel({a, b, ctx.zeros({4, 12}).split_dim(1, 2).narrow(2, 0, 1)}, ctx), Error);
}

TEST(Gemm, AnUnknownLibraryIsNamedWithTheKnownOnes) {
  try {
    cpu::find_gemm("abacus");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("abacus"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("eigen"), std::string::npos);
  }
}

TEST(Gemm, ScalesByAlpha) {
  for (const auto& library : cpu::gemm_libraries()) {
    const float a[2] = {1, 2}, b[2] = {3, 4};
    float c = 10;
    library.fn(
        {.m = 1, .n = 1, .k = 2, .a = a, .lda = 2, .b = b, .ldb = 1, .c = &c, .ldc = 1, .alpha = 0.5f, .beta = 2});
    EXPECT_FLOAT_EQ(c, 25.5f) << library.name;
  }
}

TEST(ColumnSum, AgreesWithAPlainSumForAnyThreads) {
  for (int threads : {1, 3})
    for (std::int64_t rows : {0, 1, 5, 1000})
      for (std::int64_t cols : {1, 17, 200}) {
        const ExecContext ctx{Stream::cpu(threads)};
        const Tensor x = strided(rows, cols, 3, 1, ctx), out = strided(1, cols, 0, 2, ctx).view({cols});
        const Tensor before = strided(1, cols, 0, 2, ctx);
        column_sum_kernel({x, out, 2.0f}, ctx);
        for (std::int64_t j = 0; j < cols; ++j) {
          double want = 2 * at(before, 0, j);
          for (std::int64_t i = 0; i < rows; ++i) want += at(x, i, j);
          ASSERT_NEAR(out.data<float>()[j], want, 2e-5) << rows << "x" << cols << " column " << j;
        }
      }
}

TEST(ColumnSum, BetaZeroIgnoresWhatWasThere) {
  const ExecContext ctx{Stream::cpu(1)};
  const Tensor x = strided(3, 2, 0, 1, ctx), out = ctx.empty({2});
  out.data<float>()[0] = out.data<float>()[1] = kNaN;
  column_sum_kernel({x, out}, ctx);
  for (int j = 0; j < 2; ++j) EXPECT_NEAR(out.data<float>()[j], at(x, 0, j) + at(x, 1, j) + at(x, 2, j), 1e-6);
  EXPECT_THROW(column_sum_kernel({x, ctx.zeros({3})}, ctx), Error);
}

}  // namespace
}  // namespace ring
