#include "kernels/group_sums.h"

#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

// One thread block per group: a step's losses are at most a few megabytes, which one block reads in some microseconds.
__global__ void __launch_bounds__(1024)
    sum_groups(const float* x, const std::int32_t* groups, std::int64_t rows, std::int64_t width, float* out) {
  const int group = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    if (groups[r] != group) continue;
    const float* row = x + r * width;
    for (std::int64_t i = thread; i < width; i += 1024) sum += static_cast<double>(row[i]);
  }
  sum = group_sum<1024>(sum);
  if (thread == 0) out[group] = static_cast<float>(static_cast<double>(out[group]) + sum);
}

void run_group_sums(const GroupSums& args, const ExecContext& ctx) {
  const std::int64_t width = width_of_rows("group_sums", args.groups, args.x.numel());
  check_numel("group_sums", "x", args.x, args.x.numel());
  check_numel("group_sums", "out", args.out, args.out.numel());
  if (width == 0) return;
  launch(ctx, {grid_of(args.out.numel()), 1024}, sum_groups, device_data<float>(args.x),
         args.groups.data<std::int32_t>(), args.groups.numel(), width, device_data<float>(args.out));
}

const bool added_group_sums = group_sums_kernel.add(Backend::cuda, {"group_in_block", run_group_sums});

}  // namespace
}  // namespace ring::cuda
