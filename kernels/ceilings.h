#pragma once
// Sustained FLOP/s and bandwidth of a device, and the minimum time that a kernel needs there (a roofline).

#include "kernels/kernel.h"

namespace ring {

struct Ceilings {
  double flops_per_second = 0, bytes_per_second = 0;  // 0 if unknown; bytes read plus bytes written
  double floor_seconds(const Cost&) const;            // returns 0 if either ceiling is unknown
};

}  // namespace ring
