#pragma once
#include "kernels/kernel.h"

namespace ring {

// out[g] += sum of the rows of x that belong to group g. x [rows * n] f32, contiguous; groups [rows] i32: a row of no
// group in [0, G) counts nowhere; out [G] f32. Summed in f64, in a fixed order.
struct GroupSums {
  Tensor x, groups, out;
};
inline Cost cost(const GroupSums& a) { return cost_of(a.x, {a.x, a.groups, a.out, a.out}); }
inline constinit Kernel<GroupSums> group_sums_kernel{"group_sums"};

}  // namespace ring
