#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/quantize_fp8.cuh"
#include "kernels/fp8_producers.h"

namespace ring::cuda {
namespace {

// RMSNorm, with the bits of norm_forward.cuh for the same rstd.
template <class T>
struct Normed {
  using Type = T;
  const T* x;
  std::int64_t stride;
  const T* w;
  const float* rstd;

  __device__ static float value(float x, float rstd, float w) { return x * rstd * w + 0.0f; }
  __device__ T at(std::int64_t row, std::int64_t column) const {
    return from_float<T>(value(to_float(x[row * stride + column]), rstd[row], to_float(w[column])));
  }
  __device__ Pack<T, kEach> pack(std::int64_t row, std::int64_t column) const {
    Floats<kEach> f = unpack(load_pack<T, kEach>(x + row * stride + column));
    const Floats<kEach> scale = unpack(load_pack<T, kEach>(w + column));
#pragma unroll
    for (int c = 0; c < kEach; ++c) f.v[c] = value(f.v[c], rstd[row], scale.v[c]);
    return cuda::pack<T>(f);
  }
};

// rstd of each row, which is the work of a warp.
template <class T>
__global__ void __launch_bounds__(kBlock)
    row_rstd(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t width, float eps, float* rstd) {
  const std::int64_t row = thread_x() / kWarp;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sum = 0;
#pragma unroll 4
  for (std::int64_t c = lane * kPack<T>; c < width; c += kWarp * kPack<T>)
    for (const float v : load(x + row * stride, c, width).v) sum += v * v;
  sum = group_sum<kWarp>(sum);
  if (lane == 0) rstd[row] = rsqrtf(sum * (1.0f / static_cast<float>(width)) + eps);
}

void run_norm(const RmsNormFp8& a, const ExecContext& ctx) {
  check(a);
  visit_float("rms_norm_fp8", a.x.dtype(), [&]<class T>() {
    const T *x = device_data<T>(a.x), *w = device_data<T>(a.w);
    const std::int64_t rows = a.x.dim(0), columns = a.x.dim(1), stride = a.x.stride(0);
    if (rows == 0) return;
    float* rstd = device_data<float>(a.rstd);
    launch(ctx, {grid_of(divide_up(rows, kWarps))}, row_rstd<T>, x, stride, rows, columns, a.eps, rstd);
    const bool packed = made_of_packs(device_rows<T>("rms_norm_fp8", "x", a.x)) && is_aligned(w);
    launch_tiles(ctx, quantize_rows<Normed<T>>, Normed<T>{x, stride, w, rstd},
                 quantize_params(a.out, a.transposed, rows, columns, packed));
  });
}

const bool added[] = {
    rms_norm_fp8_kernel.add(Backend::cuda, {"tiles", run_norm, nullptr, 10}),
    rms_norm_fp8_kernel.add(Backend::cuda, {"separate", run_separately}),
};

}  // namespace
}  // namespace ring::cuda
