#pragma once
// Words that all attention kernels share, on CPUs and GPUs.

#include <cstdint>

namespace ring {

enum class Stationary : std::uint8_t { q, kv };  // whose rows are fixed while the other side's columns stream past

}  // namespace ring
