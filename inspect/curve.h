#pragma once
// Curves of a report: points sorted by x.

#include <cstddef>
#include <vector>

namespace ring {

struct CurvePoint {
  double x = 0, y = 0;  // y may not be finite
  bool operator==(const CurvePoint&) const = default;
};
using Curve = std::vector<CurvePoint>;

inline constexpr std::size_t kMaxPoints = 1000;  // maximum number of points in one drawn curve

// Returns the exponential moving average that TensorBoard draws: s = weight s + (1 - weight) y from s = 0, divided by 1
// - weight^n to remove the bias of the start (tensorboard/components/vz_line_chart2, resmoothDataset). Points that are
// not finite are kept but not averaged. Requires 0 <= weight < 1.
Curve smoothed(const Curve&, double weight);

// Returns at most `max` points (at least 4): the first point, the last point, and the lowest and highest point of each
// of several stretches of equal length, so that the overall extremes remain. A stretch without finite values remains a
// gap.
Curve thinned(const Curve&, std::size_t max = kMaxPoints);

}  // namespace ring
