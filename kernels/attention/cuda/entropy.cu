#include "kernels/attention/entropy.h"

#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

// Computes entropies: one warp per head of each row, r = row * heads + head.
template <class T>
__global__ void __launch_bounds__(kBlock)
    entropies(RowsOf<T> q, const float* keys, const float* lse, float* out, std::int64_t heads, float scale) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t rows = q.count / heads, first = blockIdx.x * std::int64_t{kWarps} + threadIdx.x / kWarp;
  for (std::int64_t r = first; r < q.count; r += gridDim.x * std::int64_t{kWarps}) {
    const std::int64_t n = r / heads, h = r % heads;
    float sum = 0;
    for (std::int64_t i = lane; i < q.width; i += kWarp) sum += to_float(q[r][i]) * keys[r * q.width + i];
    sum = warp_sum(sum);
    if (lane) continue;
    const float total = lse[h * rows + n];
    const bool sees = isfinite(total);
    float* const entropy = out + n * 2 * heads + h;
    entropy[0] = sees ? total - scale * sum : 0.0f;
    entropy[heads] = sees ? 1.0f : 0.0f;
  }
}

void run_attention_entropy(const AttentionEntropy& args, const ExecContext& ctx) {
  check(args);
  const Launch shape{
      grid_of(std::min(divide_up(args.q.dim(0) * args.q.dim(1), std::int64_t{kWarps}), resident_blocks(ctx)))};
  visit_float("attention_entropy", args.q.dtype(), [&]<class T>() {
    launch(ctx, shape, entropies<T>, device_rows<T>("attention_entropy", "q", args.q), device_data<float>(args.keys),
           device_data<float>(args.lse), device_data<float>(args.out), args.q.dim(1), args.scale);
  });
}

const bool added_entropy = attention_entropy_kernel.add(Backend::cuda, {"warps", run_attention_entropy});

}  // namespace
}  // namespace ring::cuda
