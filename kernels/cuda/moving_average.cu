#include "kernels/moving_average.h"

#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

constexpr int kSize = kPack<float>;

__device__ inline float averaged(float average, float value, float rate) {
  return fmaf(rate, value - average, average);
}

// If addresses are aligned, threads process whole packs, and single elements after the last pack.
__global__ void __launch_bounds__(kBlock)
    moving_average(const float* values, float* average, std::int64_t n, const StepState* state, double decay) {
  if (!state->accepted) return;
  const float rate = static_cast<float>(1 - decay_at(state->step, decay));
  const std::int64_t thread = std::int64_t{blockIdx.x} * kBlock + threadIdx.x,
                     threads = std::int64_t{gridDim.x} * kBlock;
  const std::int64_t packs = is_aligned(values) && is_aligned(average) ? n / kSize : 0;
  for (std::int64_t p = thread; p < packs; p += threads) {
    const Floats<kSize> value = unpack(load_pack<float, kSize, Cache::stream>(values + p * kSize));
    Floats<kSize> mean = unpack(load_pack<float, kSize, Cache::stream>(average + p * kSize));
#pragma unroll
    for (int j = 0; j < kSize; ++j) mean.v[j] = averaged(mean.v[j], value.v[j], rate);
    store_pack<Cache::stream>(average + p * kSize, pack<float>(mean));
  }
  for (std::int64_t i = packs * kSize + thread; i < n; i += threads) average[i] = averaged(average[i], values[i], rate);
}

void run_moving_average(const MovingAverage& args, const ExecContext& ctx) {
  const std::int64_t n = args.average.numel();
  check_numel("moving_average", "values", args.values, n);
  check_numel("moving_average", "average", args.average, n);
  const StepState* state = &state_of("moving_average", args.state);
  launch(ctx, elements(ctx, n, kSize), moving_average, device_data<float>(args.values),
         device_data<float>(args.average), n, state, args.decay);
}

const bool added_moving_average = moving_average_kernel.add(Backend::cuda, {"packs", run_moving_average});

}  // namespace
}  // namespace ring::cuda
