#pragma once
// Integers that change their type, or grow, exactly or not at all.

#include <cstdint>
#include <optional>
#include <utility>

#include "core/check.h"

namespace ring {

// The same number as another type. A number from settings has a range that fits (core/fields.h).
template <class To, class From>
To narrow(From value) {
  RING_CHECK(std::in_range<To>(value), value, " does not fit into ", 8 * sizeof(To), " bits");
  return static_cast<To>(value);
}

// The product of numbers that are not negative; none: it does not fit.
inline std::optional<std::int64_t> product(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) return {};
  return out;
}

}  // namespace ring
