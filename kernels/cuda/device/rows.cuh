#pragma once
// Addresses of rows of strided tensors on the device, where divisions are expensive.

#include <cstdint>

namespace ring::cuda {

// Divides numbers below 2^31 with a multiplication (Granlund and Montgomery 1994, figure 4.1, for 31 bits).
struct Divider {
  std::uint32_t divisor = 1, multiplier = 0, shift = 0;

  Divider() = default;
  explicit constexpr Divider(std::uint32_t d) : divisor(d) {
    if (d <= 1) return;
    std::uint32_t bits = 0;  // ceil(log2(d))
    while ((std::uint64_t{1} << bits) < d) ++bits;
    multiplier = static_cast<std::uint32_t>(((std::uint64_t{1} << (31 + bits)) + d - 1) / d);
    shift = bits - 1;
  }
  __device__ std::uint32_t quotient(std::uint32_t n) const {
    return divisor == 1 ? n : __umulhi(n, multiplier) >> shift;
  }
};

// Row outer * (number of inner rows) + inner of a tensor starts at data + outer * outer_stride + inner * inner_stride.
template <class T>
struct StridedRows {
  T* data = nullptr;
  std::int64_t outer_stride = 0, inner_stride = 0;
  __device__ T* at(std::uint32_t outer, std::uint32_t inner) const {
    return data + outer * outer_stride + inner * inner_stride;
  }
};

}  // namespace ring::cuda
