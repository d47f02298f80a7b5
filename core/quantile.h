#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace ring {

// Returns the q-quantile by the nearest rank: the smallest value that at least a share `q` of the values does not
// exceed. Requires 0 < q <= 1 and at least one value.
inline double quantile(std::vector<double> values, double q) {
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(values.size())));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// Returns the median: the mean of the middle two values if their number is even, and 0 if there are none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return values.size() % 2 ? *middle : (*std::max_element(values.begin(), middle) + *middle) / 2;
}

}  // namespace ring
