#pragma once
// Regions of a tensor's elements: the part that a rank or a file holds, and intersections of such parts.

#include <algorithm>
#include <functional>

#include "core/shape.h"

namespace ring {

struct Region {
  Shape start, size;
  bool operator==(const Region&) const = default;
  std::int64_t numel() const { return size.numel(); }
};

// Returns the intersection of two regions with the same number of dims. If the regions are disjoint, its size is 0 in
// some dim.
inline Region intersect(const Region& a, const Region& b) {
  RING_CHECK(a.size.size() == b.size.size(), "regions of ", a.size.size(), " and ", b.size.size(), " dims");
  Region both = a;
  for (int i = 0; i < a.size.size(); ++i) {
    both.start[i] = std::max(a.start[i], b.start[i]);
    both.size[i] = std::max<std::int64_t>(0, std::min(a.start[i] + a.size[i], b.start[i] + b.size[i]) - both.start[i]);
  }
  return both;
}

// Calls run(from, to, count) for every range of elements that is contiguous in both `source` and `target`, in the order
// of `source`. `from` and `to` are element offsets in `source` and in `target`.
void for_each_run(const Region& source, const Region& target,
                  const std::function<void(std::int64_t from, std::int64_t to, std::int64_t count)>& run);

}  // namespace ring
