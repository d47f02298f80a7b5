#include "kernels/cpu/transpose.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ring::cpu {
namespace {

constexpr int kSide = 8;
using Row = float __attribute__((vector_size(kSide * sizeof(float))));

// Combine two rows that are `size` apart, in blocks of `size` columns. even() interleaves the blocks with an even index
// of both rows, odd() the blocks with an odd index.
template <int size, int... j>
Row even(Row a, Row b, std::integer_sequence<int, j...>) {
  return __builtin_shufflevector(a, b, (j & size ? kSide + j - size : j)...);
}
template <int size, int... j>
Row odd(Row a, Row b, std::integer_sequence<int, j...>) {
  return __builtin_shufflevector(a, b, (j & size ? kSide + j : j + size)...);
}

// Swaps the two off-diagonal blocks of size x size in every block of 2 size x 2 size, then recurses with half the size.
template <int size>
void swap_blocks(Row* rows) {
  constexpr std::make_integer_sequence<int, kSide> all{};
#pragma GCC unroll 8
  for (int i = 0; i < kSide; ++i) {
    if (i & size) continue;
    const Row a = rows[i], b = rows[i + size];
    rows[i] = even<size>(a, b, all);
    rows[i + size] = odd<size>(a, b, all);
  }
  if constexpr (size > 1) swap_blocks<size / 2>(rows);
}

void transpose_block(const float* from, std::int64_t from_stride, std::int64_t count, float* to,
                     std::int64_t to_stride) {
  Row rows[kSide] = {};
#pragma GCC unroll 8
  for (int i = 0; i < kSide; ++i)
    if (i < count) std::memcpy(&rows[i], from + i * from_stride, sizeof(Row));
  swap_blocks<kSide / 2>(rows);
#pragma GCC unroll 8
  for (int i = 0; i < kSide; ++i) std::memcpy(to + i * to_stride, &rows[i], sizeof(Row));
}

}  // namespace

void transpose(const float* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns, float* to,
               std::int64_t to_stride) {
  for (std::int64_t j = 0; j < columns; j += kSide)
    for (std::int64_t i = 0; i < rows; i += kSide)
      transpose_block(from + i * from_stride + j, from_stride, rows - i, to + j * to_stride + i, to_stride);
}

}  // namespace ring::cpu
