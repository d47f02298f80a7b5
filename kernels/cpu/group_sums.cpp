#include "kernels/group_sums.h"

#include "kernels/cpu/rows.h"

namespace ring::cpu {
namespace {

// Sums each row in one thread, and then adds the rows in the calling thread, so that the order does not
// depend on the number of threads.
void run_group_sums(const GroupSums& args, const ExecContext& ctx) {
  const std::int64_t width = width_of_rows("group_sums", args.groups, args.x.numel());
  check_numel("group_sums", "x", args.x, args.x.numel());
  check_numel("group_sums", "out", args.out, args.out.numel());
  if (width == 0) return;
  const float* x = args.x.data<float>();
  const std::int32_t* groups = args.groups.data<std::int32_t>();
  std::vector<double> sums(static_cast<std::size_t>(args.groups.numel()));
  ctx.stream.pool().parallel_for(args.groups.numel(), row_grain(width), [&](auto begin, auto end, int) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t i = 0; i < width; ++i)
        sums[static_cast<std::size_t>(r)] += static_cast<double>(x[r * width + i]);
  });
  std::vector<double> all(static_cast<std::size_t>(args.out.numel()));
  for (std::size_t r = 0; r < sums.size(); ++r)
    if (groups[r] >= 0 && groups[r] < args.out.numel()) all[static_cast<std::size_t>(groups[r])] += sums[r];
  float* out = args.out.data<float>();
  for (std::size_t g = 0; g < all.size(); ++g) out[g] = static_cast<float>(static_cast<double>(out[g]) + all[g]);
}

const bool added = group_sums_kernel.add(Backend::cpu, {"rows", run_group_sums});

}  // namespace
}  // namespace ring::cpu
