#pragma once
// Curves of a report: points by ascending x.

#include <cstddef>
#include <vector>

namespace ring {

struct CurvePoint {
  double x = 0, y = 0;  // y may not be finite
  bool operator==(const CurvePoint&) const = default;
};
using Curve = std::vector<CurvePoint>;

inline constexpr std::size_t kMostPoints = 1000;  // of a curve that is drawn

// The exponential mean as TensorBoard smooths: s = weight s + (1 - weight) y from s = 0, over 1 - weight^n, so that the
// first points count in full (tensorboard/components/vz_line_chart2, resmoothDataset). What is not finite stays as it
// is and changes nothing. 0 <= weight < 1.
Curve smoothed(const Curve&, double weight);

// At most `most` points (at least 4), the first, the last, the lowest and the highest among them: those two of every
// stretch of equally many points. A stretch of values that are not finite stays a gap.
Curve thinned(const Curve&, std::size_t most = kMostPoints);

}  // namespace ring
