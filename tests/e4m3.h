#pragma once
// e4m3 and the scales of its blocks as defined, in float64.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace ring::test {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The definition (OCP 8-bit floating point specification, 1.0): sign, 4 exponent bits with bias 7, 3 mantissa bits.
inline double e4m3_value(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return kNaN;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

// Returns the code of the nearest value; of two equally near values, the even code.
inline std::uint8_t nearest_code(double x) {
  static const std::vector<double> values = [] {
    std::vector<double> v;
    for (int code = 0; code < 0x7f; ++code) v.push_back(e4m3_value(code));
    return v;
  }();
  if (!std::isfinite(x)) return 0x7f;
  const double magnitude = std::abs(x);
  auto code = static_cast<int>(std::ranges::lower_bound(values, magnitude) - values.begin());
  code = std::min(code, 0x7e);
  if (code > 0) {
    const double up = e4m3_value(code) - magnitude, down = magnitude - e4m3_value(code - 1);
    if (down < up || (down == up && code % 2)) --code;
  }
  return static_cast<std::uint8_t>(code | (std::signbit(x) ? 0x80 : 0));
}

// Returns the smallest power of two, at least 2^-126, that brings max below 448.
inline double scale_of(double max) {
  if (max == 0 || std::isinf(max)) return 1;
  double scale = std::ldexp(1, -126);
  while (max / scale > 448) scale *= 2;
  return scale;
}

}  // namespace ring::test
