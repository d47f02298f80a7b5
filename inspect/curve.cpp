#include "inspect/curve.h"

#include <algorithm>
#include <cmath>

namespace ring {
namespace {

// Adds the lowest and the highest point in order of x; if no point is finite, adds the first point.
void add_extremes(Curve& out, Curve::const_iterator begin, Curve::const_iterator end) {
  auto low = end, high = end;
  for (auto p = begin; p != end; ++p) {
    if (!std::isfinite(p->y)) continue;
    if (low == end || p->y < low->y) low = p;
    if (high == end || p->y > high->y) high = p;
  }
  if (low == end) low = high = begin;
  if (low > high) std::swap(low, high);
  out.push_back(*low);
  if (high != low) out.push_back(*high);
}

}  // namespace

Curve smoothed(const Curve& curve, double weight) {
  Curve out = curve;
  double mean = 0, left = 1;  // left: share of the start value 0 in `mean`
  for (CurvePoint& p : out) {
    if (!std::isfinite(p.y)) continue;
    mean = weight * mean + (1 - weight) * p.y;
    left *= weight;
    p.y = mean / (1 - left);
  }
  return out;
}

Curve thinned(const Curve& curve, std::size_t max) {
  if (curve.size() <= max) return curve;
  Curve out = {curve.front()};
  const std::size_t inside = curve.size() - 2, stretches = (max - 2) / 2;
  for (std::size_t i = 0; i < stretches; ++i) {
    const auto at = [&](std::size_t n) {
      return curve.begin() + 1 + static_cast<std::ptrdiff_t>(n * inside / stretches);
    };
    add_extremes(out, at(i), at(i + 1));
  }
  out.push_back(curve.back());
  return out;
}

}  // namespace ring
