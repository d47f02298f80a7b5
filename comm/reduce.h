#pragma once
// Computes out[i] = sources[0][i] op sources[1][i] op .., in this order. `out` may be one of the sources. Types: f32,
// i32, and bf16, which is accumulated in f32 and rounded once.

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace ring {

void reduce_in_order(DType dtype, Reduce op, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n);

}  // namespace ring
