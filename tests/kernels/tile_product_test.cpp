#include "kernels/attention/cpu/tile_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/transpose.h"

namespace ring::cpu {
namespace {

constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();

std::vector<float> numbers(std::int64_t n, unsigned seed) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& v : x) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(seed >> 8) * 0x1p-23f - 1;
  }
  return x;
}

struct Sizes {
  std::int64_t m, n, k;
};

// Rows of all operands are `stride` apart, with NaN between them.
void expect_product(const Sizes& s, bool transposed, float alpha, float beta) {
  constexpr std::int64_t stride = 144;
  const std::vector<float> a = numbers(stride * stride, 1), b = numbers(s.k * stride + stride, 2);
  std::vector<float> c(static_cast<std::size_t>(s.m * stride), kUnwritten);
  const std::vector<float> before = numbers(s.m * stride, 3);
  for (std::int64_t i = 0; beta != 0 && i < s.m; ++i)
    for (std::int64_t j = 0; j < s.n; ++j) c[i * stride + j] = before[i * stride + j];
  const std::int64_t row = transposed ? 1 : stride, column = transposed ? stride : 1;
  tile_product({.m = s.m,
                .n = s.n,
                .k = s.k,
                .a = a.data(),
                .a_row = row,
                .a_column = column,
                .b = b.data(),
                .ldb = stride,
                .c = c.data(),
                .ldc = stride,
                .alpha = alpha,
                .beta = beta});
  for (std::int64_t i = 0; i < s.m; ++i)
    for (std::int64_t j = 0; j < stride; ++j) {
      if (j >= s.n) {
        ASSERT_TRUE(std::isnan(c[i * stride + j])) << i << ' ' << j;
        continue;
      }
      double want = 0;
      for (std::int64_t l = 0; l < s.k; ++l)
        want += static_cast<double>(a[i * row + l * column]) * static_cast<double>(b[l * stride + j]);
      want = alpha * want + (beta != 0 ? beta * static_cast<double>(before[i * stride + j]) : 0);
      ASSERT_NEAR(c[i * stride + j], want, 2e-6 * (1 + static_cast<double>(s.k) / 8)) << i << ' ' << j;
    }
}

TEST(TileProduct, EqualsTheFormula) {
  for (const Sizes& s : {Sizes{16, 32, 64}, Sizes{64, 128, 32}, Sizes{13, 24, 7}, Sizes{1, 8, 1}, Sizes{7, 120, 128},
                         Sizes{15, 40, 0}, Sizes{0, 8, 8}})
    for (const bool transposed : {false, true})
      for (const float beta : {0.0f, 1.0f, -0.5f}) {
        SCOPED_TRACE(testing::Message() << s.m << " x " << s.n << " x " << s.k << ", beta " << beta);
        expect_product(s, transposed, 0.25f, beta);
      }
}

TEST(Transpose, KeepsEveryNumberAndFillsWholeEights) {
  constexpr std::int64_t from_stride = 67, to_stride = 45;
  for (const std::int64_t rows : {1, 8, 13, 40})
    for (const std::int64_t columns : {8, 32, 64}) {
      const std::vector<float> from = numbers(rows * from_stride, 4);
      std::vector<float> to(static_cast<std::size_t>(columns * to_stride), kUnwritten);
      transpose(from.data(), from_stride, rows, columns, to.data(), to_stride);
      for (std::int64_t j = 0; j < columns; ++j)
        for (std::int64_t i = 0; i < to_stride; ++i) {
          const float got = to[j * to_stride + i];
          if (i < rows)
            ASSERT_EQ(got, from[i * from_stride + j]) << i << ' ' << j;
          else if (i < (rows + 7) / 8 * 8)
            ASSERT_EQ(got, 0.0f) << i << ' ' << j;
          else
            ASSERT_TRUE(std::isnan(got)) << i << ' ' << j;
        }
    }
}

}  // namespace
}  // namespace ring::cpu
