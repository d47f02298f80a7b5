#pragma once
// Transposes blocks of floats that lie in a cache, eight by eight in registers.

#include <cstdint>

namespace ring::cpu {

// to[j][i] = from[i][j] for the `rows` x `columns` of `from`; columns: a multiple of 8. The rows of `to` have room for
// whole eights, of which those beyond `rows` become 0.
void transpose(const float* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns, float* to,
               std::int64_t to_stride);

}  // namespace ring::cpu
