#pragma once
// Words that all attention kernels share, on CPUs and GPUs.

#include <cstdint>

#ifdef __CUDACC__
#define RING_HOST_DEVICE __host__ __device__
#else
#define RING_HOST_DEVICE
#endif

namespace ring {

enum class Stationary : std::uint8_t { q, kv };  // whose rows are fixed while the other side's columns stream past

}  // namespace ring
