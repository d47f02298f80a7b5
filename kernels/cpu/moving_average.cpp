#include "kernels/moving_average.h"

#include "kernels/cpu/rows.h"

namespace ring::cpu {
namespace {

void run_moving_average(const MovingAverage& args, const ExecContext& ctx) {
  const StepState& state = state_of("moving_average", args.state);
  const std::int64_t n = args.average.numel();
  check_numel("moving_average", "values", args.values, n);
  check_numel("moving_average", "average", args.average, n);
  if (!state.accepted) return;
  const auto rate = static_cast<float>(1 - decay_at(state.step, args.decay));
  const float* values = args.values.data<float>();
  float* average = args.average.data<float>();
  ctx.stream.pool().parallel_for(n, kPartWork, [=](std::int64_t begin, std::int64_t end, int) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) average[i] += rate * (values[i] - average[i]);
  });
}

const bool added = moving_average_kernel.add(Backend::cpu, {"simd", run_moving_average});

}  // namespace
}  // namespace ring::cpu
