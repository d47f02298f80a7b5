#include "kernels/attention/cudnn/stats.h"

#include "kernels/cuda/launch.h"

namespace ring::cudnn {
namespace {

// A block copies part of the row of one head and sequence.
__global__ void swap_outer_dims(const float* from, float* to, std::int64_t batch, std::int64_t heads,
                                std::int64_t length) {
  for (std::int64_t row = blockIdx.y; row < batch * heads; row += gridDim.y) {
    const std::int64_t b = row / heads, h = row % heads;
    const float* source = from + (h * batch + b) * length;
    for (std::int64_t t = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; t < length;
         t += std::int64_t{gridDim.x} * blockDim.x)
      to[row * length + t] = source[t];
  }
}

}  // namespace

Tensor by_sequence(const Tensor& lse, std::int64_t batch, const Context& ctx) {
  const std::int64_t heads = lse.dim(0), length = lse.dim(1) / batch;
  const Tensor out = ctx.empty({batch, heads, length});
  cuda::launch(ctx,
               {cuda::grid_of(cuda::divide_up(length, std::int64_t{4} * cuda::kBlock),
                              std::min(batch * heads, cuda::kMaxGridY))},
               swap_outer_dims, lse.data<float>(), out.data<float>(), batch, heads, length);
  return out;
}

}  // namespace ring::cudnn
