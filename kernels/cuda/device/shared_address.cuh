#pragma once
// Converts pointers to 32-bit shared-memory addresses, which PTX instructions take.

#include <cstdint>

namespace ring::cuda {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

}  // namespace ring::cuda
