#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/quantize_fp8.cuh"
#include "kernels/fp8_producers.h"

namespace ring::cuda {
namespace {

// RMSNorm as a source (quantize_fp8.cuh); bit-identical to norm_forward.cuh for the same rstd.
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

// Computes rstd of each row, one warp per row. Unless max is null, also raises *max to the maximum magnitude of the
// normalized rows.
template <class T>
__global__ void __launch_bounds__(kBlock)
    row_rstd(const Normed<T> source, std::int64_t rows, std::int64_t width, float eps, float* rstd, float* max) {
  const std::int64_t row = thread_x() / kWarp;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const T* x = source.x + row * source.stride;
  float sum = 0;
#pragma unroll 4
  for (std::int64_t c = lane * kPack<T>; c < width; c += kWarp * kPack<T>)
    for (const float v : load(x, c, width).v) sum += v * v;
  sum = group_sum<kWarp>(sum);
  const float r = rsqrtf(sum * (1.0f / static_cast<float>(width)) + eps);
  if (lane == 0) rstd[row] = r;
  if (!max) return;
  float largest = 0;
#pragma unroll 4
  for (std::int64_t c = lane * kPack<T>; c < width; c += kWarp * kPack<T>) {
    const Floats<kPack<T>> f = load(x, c, width), w = load(source.w, c, width);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) largest = fmaxf(largest, fabsf(Normed<T>::value(f.v[i], r, w.v[i])));
  }
  largest = max_over_lanes(largest, kWarp);
  if (lane == 0) raise_max(max, to_float(from_float<T>(largest)));
}

void run_norm(const RmsNormFp8& a, const ExecContext& ctx) {
  check(a);
  visit_float("rms_norm_fp8", a.x.dtype(), [&]<class T>() {
    const T *x = device_data<T>(a.x), *w = device_data<T>(a.w);
    const std::int64_t rows = a.x.dim(0), columns = a.x.dim(1), stride = a.x.stride(0);
    if (rows == 0) return;
    float* rstd = device_data<float>(a.rstd);
    const bool packed = made_of_packs(device_rows<T>("rms_norm_fp8", "x", a.x)) && is_aligned(w);
    const Normed<T> source{x, stride, w, rstd};
    const QuantizeParams p = quantize_params(a, rows, columns, packed);
    launch(ctx, {grid_of(divide_up(rows, kWarps))}, row_rstd<T>, source, rows, columns, a.eps, rstd,
           p.given ? nullptr : p.max);
    if (!p.max)
      launch_tiles(ctx, quantize_blocks<Operand::input, Normed<T>>, source, p);
    else if (p.out.values || p.transposed.values)
      launch_tiles(ctx, quantize_tensor<Normed<T>>, source, p);
  });
}

const bool added_rms_norm_fp8[] = {
    rms_norm_fp8_kernel.add(Backend::cuda, {"tiles", run_norm, nullptr, 10}),
    rms_norm_fp8_kernel.add(Backend::cuda, {"separate", run_separately}),
};

}  // namespace
}  // namespace ring::cuda
