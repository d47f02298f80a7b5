#include "kernels/attention/cpu/tile_product.h"

#include <cstring>

namespace ring::cpu {
namespace {

// kWidth: floats per register. Accumulators are kRows x 2 registers, as many as fit the register file.
#if defined(__AVX512F__)
constexpr int kWidth = 16, kRows = 8;
#else
constexpr int kWidth = 8, kRows = 6;
#endif

template <int width>
struct Vector {
  // Not a `using`, from which g++ 12 would drop the attribute.
  typedef float Type __attribute__((vector_size(width * sizeof(float))));
  static Type load(const float* p) {
    Type v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
};

// Computes rows [i, i + rows) and columns [j, j + vectors * width) of C.
template <int rows, int vectors, int width>
void block(const TileProduct& p, std::int64_t i, std::int64_t j) {
  using V = Vector<width>;
  typename V::Type sums[rows][vectors];
#pragma GCC unroll 8  // unrolled, like all loops below, so that the accumulators stay in registers
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[r][v] = typename V::Type{};
  const std::int64_t a_row = p.a_row, a_column = p.a_column, ldb = p.ldb, ldc = p.ldc;
  const float *a = p.a + i * a_row, *b = p.b + j;
  for (std::int64_t l = p.k; l > 0; --l, a += a_column, b += ldb) {
    typename V::Type row[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) row[v] = V::load(b + v * width);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[r][v] += a[r * a_row] * row[v];
  }
  const float alpha = p.alpha, beta = p.beta;
  float* const c = p.c + i * ldc + j;
  const auto store = [&](const auto& value) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        float* to = c + r * ldc + v * width;
        const typename V::Type sum = value(alpha * sums[r][v], to);
        std::memcpy(to, &sum, sizeof sum);
      }
  };
  if (beta == 0)
    store([](typename V::Type sum, const float*) { return sum; });
  else
    store([beta](typename V::Type sum, const float* from) { return sum + beta * V::load(from); });
}

template <int rows>
void row_block(const TileProduct& p, std::int64_t i) {
  std::int64_t j = 0;
  for (; j + 2 * kWidth <= p.n; j += 2 * kWidth) block<rows, 2, kWidth>(p, i, j);
  for (; j + kWidth <= p.n; j += kWidth) block<rows, 1, kWidth>(p, i, j);
  if (j < p.n) block<rows, 1, 8>(p, i, j);
}

// Computes the rows from i on in groups of `rows`, and the remaining rows in groups of the next smaller powers of two.
template <int rows>
void row_blocks(const TileProduct& p, std::int64_t i) {
  for (; i + rows <= p.m; i += rows) row_block<rows>(p, i);
  if constexpr (rows > 1) row_blocks<(rows == 6 ? 4 : rows / 2)>(p, i);
}

}  // namespace

void tile_product(const TileProduct& p) { row_blocks<kRows>(p, 0); }

}  // namespace ring::cpu
