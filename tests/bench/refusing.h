#pragma once
// Steps that run out of memory at a chosen allocation.

#include <cstdint>

#include "core/step_arena.h"

namespace ring {

// Counts allocations of steps, and refuses one.
inline std::int64_t allocations = 0, refused = 0;

struct Refusing {
  explicit Refusing(std::int64_t nth) {
    allocations = 0;
    refused = nth;
    refuse_allocation = [](bool within_step) { return within_step && ++allocations == refused; };
  }
  ~Refusing() { refuse_allocation = nullptr; }
};

}  // namespace ring
