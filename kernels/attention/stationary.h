#pragma once
// The stationary operand of an attention kernel, on CPUs and GPUs.

#include <cstdint>

#include "core/host_device.h"

namespace ring {

enum class Stationary : std::uint8_t { q, kv };  // the owner: its rows stay while the other side's columns stream past

RING_HOST_DEVICE constexpr Stationary other(Stationary side) {
  return side == Stationary::q ? Stationary::kv : Stationary::q;
}

}  // namespace ring
