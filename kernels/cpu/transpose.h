#pragma once
// Transposes matrices of floats that fit a cache, in 8 x 8 blocks in registers.

#include <cstdint>

namespace ring::cpu {

// to[j][i] = from[i][j] for i < rows and j < columns, a multiple of 8. Rows of `to` need space for `rows` rounded up to
// a multiple of 8; the padding is set to 0. Strides are in floats.
void transpose(const float* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns, float* to,
               std::int64_t to_stride);

}  // namespace ring::cpu
