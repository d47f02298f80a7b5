#include "kernels/ceilings.h"

#include <algorithm>

namespace ring {

double Ceilings::floor_seconds(const Cost& cost) const {
  if (!(flops_per_second > 0 && bytes_per_second > 0)) return 0;
  return std::max(cost.flops / flops_per_second, cost.bytes / bytes_per_second);
}

}  // namespace ring
