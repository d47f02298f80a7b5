#pragma once
#include "kernels/kernel.h"

namespace ring {

// out[g] += sum of all elements of the rows of x in group g. x [rows * n] f32, contiguous; groups [rows] i32: each
// row's group (the row is ignored if it is not in [0, G)); out [G] f32. Accumulates in f64, in a fixed order.
struct GroupSums {
  Tensor x, groups, out;
};
inline Cost cost(const GroupSums& a) { return cost_of(a.x, {a.x, a.groups, a.out, a.out}); }
inline constinit Kernel<GroupSums> group_sums_kernel{"group_sums"};

}  // namespace ring
