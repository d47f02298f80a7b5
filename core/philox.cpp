#include "core/philox.h"

#include <cmath>
#include <numbers>

namespace ring {

float random_normal(const RandomSite& s, std::uint64_t element) {
  const Philox4 r = random_block(s, element / 2);
  // `u` has 32 bits and is uniform in (0, 1] instead of [0, 1), because log(0) would be infinite.
  const double u = (static_cast<double>(r.v[0]) + 1.0) * 0x1p-32;
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(r.v[1]) * 0x1p-32;
  const double radius = std::sqrt(-2.0 * std::log(u));
  return static_cast<float>(radius * (element % 2 ? std::sin(angle) : std::cos(angle)));
}

}  // namespace ring
