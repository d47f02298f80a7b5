#pragma once
// What a device sustains, and so the least time that work takes on it.

#include "kernels/kernel.h"

namespace ring {

// 0: unknown. bytes: read and written.
struct Ceilings {
  double flops_per_second = 0, bytes_per_second = 0;
  double floor_seconds(const Cost&) const;  // 0: unknown
};

}  // namespace ring
