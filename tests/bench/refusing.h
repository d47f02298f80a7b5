#pragma once
// Steps that run out of memory at a chosen allocation.

#include <cstdint>
#include <cstdlib>
#include <random>

#include "core/step_arena.h"

namespace ring {

// Counts the allocations of steps, and refuses one.
inline std::int64_t allocations = 0, refused = 0;

// Allows longer runs by hand: RING_OUT_OF_MEMORIES=50 sets the number of events, RING_OUT_OF_MEMORIES_SEED their
// allocations.
inline int events_of_environment(int otherwise) {
  const char* text = std::getenv("RING_OUT_OF_MEMORIES");
  return text ? std::atoi(text) : otherwise;
}
inline std::mt19937 random_of_environment() {
  const char* text = std::getenv("RING_OUT_OF_MEMORIES_SEED");
  return std::mt19937(text ? static_cast<unsigned>(std::atoi(text)) : 50u);
}

struct Refusing {
  explicit Refusing(std::int64_t nth) {
    allocations = 0;
    refused = nth;
    refuse_allocation = [](bool within_step) { return within_step && ++allocations == refused; };
  }
  ~Refusing() { refuse_allocation = nullptr; }
};

}  // namespace ring
