#include "kernels/rope.h"

#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

constexpr double kPerRadian = 0.15915494309189535;  // turns

struct Heads {
  float* data;
  std::int64_t token_stride, head_stride;
  __device__ float* at(std::int64_t n, std::int64_t h) const { return data + n * token_stride + h * head_stride; }
};

// One thread rotates pair i of every head of a token: they share the angle.
__global__ void rope_f32(Heads x, Heads out, const std::int32_t* positions, const float* inv_freq, std::int64_t tokens,
                         std::int64_t heads, std::int64_t half, float sign, float beta) {
  for (std::int64_t n = thread_y(); n < tokens; n += threads_y())
    for (std::int64_t i = thread_x(); i < half; i += threads_x()) {
      // Angles are products of up to millions of radians: reduced to one turn in f64, then f32 is enough.
      const double turns = positions[n] * (static_cast<double>(inv_freq[i]) * kPerRadian);
      float sine, cosine;
      sincospif(2.0f * static_cast<float>(turns - rint(turns)), &sine, &cosine);
      sine *= sign;
      for (std::int64_t h = 0; h < heads; ++h) {
        const float a = x.at(n, h)[i], b = x.at(n, h)[i + half];
        float *low = out.at(n, h) + i, *high = low + half;
        const float rotated_a = a * cosine - b * sine, rotated_b = b * cosine + a * sine;
        *low = beta == 0 ? rotated_a : beta * *low + rotated_a;
        *high = beta == 0 ? rotated_b : beta * *high + rotated_b;
      }
    }
}

void run_rope(const Rope& args, const Context& ctx) {
  const Tensor &x = args.x, &out = args.out;
  RING_CHECK(x.shape().size() == 3 && x.dim(2) % 2 == 0, "rope: x is ", describe(x), ", expected [N,H,D] with even D");
  check_shape("rope", "out", out, x.shape());
  RING_CHECK(x.stride(2) == 1 && out.stride(2) == 1, "rope: the last dim is strided");
  check_numel("rope", "positions", args.positions, x.dim(0));
  check_numel("rope", "inv_freq", args.inv_freq, x.dim(2) / 2);
  const std::int64_t half = x.dim(2) / 2;
  launch(ctx, rows_by(x.dim(0), half), rope_f32, Heads{x.data<float>(), x.stride(0), x.stride(1)},
         Heads{out.data<float>(), out.stride(0), out.stride(1)}, args.positions.data<std::int32_t>(),
         args.inv_freq.data<float>(), x.dim(0), x.dim(1), half, args.inverse ? -1.0f : 1.0f, args.beta);
}

const bool added = rope_kernel.add(Backend::cuda, {"f32", run_rope});

}  // namespace
}  // namespace ring::cuda
