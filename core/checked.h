#pragma once
// Integer conversions and products that are exact, or fail.

#include <cstdint>
#include <optional>
#include <utility>

#include "core/check.h"

namespace ring {

// Returns the same number as a different type. Throws Error if it does not fit. Numbers from settings always fit: their
// ranges are checked when they are loaded (core/fields.h).
template <class To, class From>
To narrow(From value) {
  RING_CHECK(std::in_range<To>(value), value, " does not fit into ", 8 * sizeof(To), " bits");
  return static_cast<To>(value);
}

// Returns the product of two non-negative numbers; nullopt if it overflows.
inline std::optional<std::int64_t> product(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) return {};
  return out;
}

}  // namespace ring
