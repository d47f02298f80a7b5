#pragma once
// Forward of RMSNorm and, if `centered`, of LayerNorm. A group of threads processes a row: part of a warp for short
// rows, a thread block for long ones. Each row is read once and kept in registers until its statistics are known. Rows
// that are too long for registers, or do not consist of 16-byte packs, are read several times instead.

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {

template <class T>
struct NormForward {
  StridedRows<T> x, y;
  Divider inner;
  std::uint32_t count;
  int width;
  const T *w, *b;      // b: null if there is none
  float *mean, *rstd;  // mean: only if centered
  float eps, w_offset;
};

// A thread block has `block` threads. Each group of `group` threads processes `rows` rows at once, and each thread
// holds `packs` packs (16-byte vectors) of each row. With small thread blocks, less of the device is idle in the last
// wave.
template <int group_, int packs_, int rows_ = 1, int block_ = kBlock>
struct ForwardPlan {
  static constexpr int group = group_, packs = packs_, rows = rows_, block = block_, groups = block_ / group_;
  static constexpr int threads = packs <= 4 ? 1280 : 768;  // resident threads per SM, which limits registers per thread
};

template <class Plan, class T>
struct HeldRows {
  Pack<T> packs[Plan::rows][Plan::packs];  // 0 past the end of a row and past the last row
};

// Computes sum[r], the sum of f(r, value) over row r, for all threads of the row's group.
template <class Plan, class T, class F>
__device__ __forceinline__ void sum_rows(const HeldRows<Plan, T>& x, int row_packs, float (&sum)[Plan::rows],
                                         const F& f) {
#pragma unroll
  for (int r = 0; r < Plan::rows; ++r) {
    sum[r] = 0;
#pragma unroll
    for (int k = 0; k < Plan::packs; ++k) {
      const Floats<kPack<T>> x_k = unpack(x.packs[r][k]);
      if (static_cast<int>(threadIdx.x) % Plan::group + k * Plan::group < row_packs)
#pragma unroll
        for (int j = 0; j < kPack<T>; ++j) sum[r] += f(r, x_k.v[j]);
    }
  }
  group_sums<Plan::group>(sum);
}

template <bool centered, class Plan, class T>
__global__ void __launch_bounds__(Plan::block, Plan::threads / Plan::block) norm_in_registers(NormForward<T> a) {
  constexpr int group = Plan::group, rows = Plan::rows, size = kPack<T>;
  const int lane = static_cast<int>(threadIdx.x) % group, row_packs = a.width / size;
  std::uint32_t n[rows];
  T* y[rows];
  HeldRows<Plan, T> x;
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    n[r] = (blockIdx.x * rows + r) * Plan::groups + threadIdx.x / group;
    const std::uint32_t outer = a.inner.quotient(n[r]), inner = n[r] - outer * a.inner.divisor;
    const T* from = a.x.at(outer, inner);
    y[r] = a.y.at(outer, inner);
#pragma unroll
    for (int k = 0; k < Plan::packs; ++k) {
      const int c = lane + k * group;
      x.packs[r][k] = n[r] < a.count && c < row_packs ? load_pack(from + c * size) : Pack<T>{};
    }
  }
  float mean[rows] = {}, rstd[rows];
  const float scale = 1.0f / static_cast<float>(a.width);
  if constexpr (centered) {
    sum_rows(x, row_packs, mean, [](int, float v) { return v; });
#pragma unroll
    for (float& m : mean) m *= scale;
  }
  sum_rows(x, row_packs, rstd, [&](int r, float v) { return (v - mean[r]) * (v - mean[r]); });
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    rstd[r] = rsqrtf(rstd[r] * scale + a.eps);
    if (lane != 0 || n[r] >= a.count) continue;
    a.rstd[n[r]] = rstd[r];
    if (centered) a.mean[n[r]] = mean[r];
  }
#pragma unroll
  for (int k = 0; k < Plan::packs; ++k) {
    const int c = lane + k * group;
    if (c >= row_packs) continue;
    const Floats<size> w = unpack(load_pack(a.w + c * size));
    Floats<size> b{};
    if (centered && a.b) b = unpack(load_pack(a.b + c * size));
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      Floats<size> v = unpack(x.packs[r][k]);
#pragma unroll
      for (int j = 0; j < size; ++j) v.v[j] = (v.v[j] - mean[r]) * rstd[r] * (w.v[j] + a.w_offset) + b.v[j];
      if (n[r] < a.count) store_pack(y[r] + c * size, pack<T>(v));
    }
  }
}

template <bool centered, int group, class T>
__global__ void __launch_bounds__(kBlock) norm_in_loops(NormForward<T> a) {
  constexpr std::int64_t step = group * kPack<T>;
  const std::uint32_t n = blockIdx.x * (kBlock / group) + threadIdx.x / group;
  if (n >= a.count) return;  // all threads of a group return together
  const std::uint32_t outer = a.inner.quotient(n), inner = n - outer * a.inner.divisor;
  const T* x = a.x.at(outer, inner);
  T* y = a.y.at(outer, inner);
  const std::int64_t first = std::int64_t{threadIdx.x % group} * kPack<T>, width = a.width;
  const float scale = 1.0f / static_cast<float>(a.width);
  float mean = 0, sum = 0;
  for (std::int64_t c = first; c < width; c += step)
    for (float v : load(x, c, width).v) sum += centered ? v : v * v;
  sum = group_sum<group>(sum);
  if constexpr (centered) {
    mean = sum * scale;
    sum = 0;
    for (std::int64_t c = first; c < width; c += step) {
      const Floats<kPack<T>> v = load(x, c, width);
      for (int j = 0; j < kPack<T>; ++j) sum += c + j < width ? (v.v[j] - mean) * (v.v[j] - mean) : 0.0f;
    }
    sum = group_sum<group>(sum);
  }
  const float rstd = rsqrtf(sum * scale + a.eps);
  if (threadIdx.x % group == 0) {
    a.rstd[n] = rstd;
    if (centered) a.mean[n] = mean;
  }
  for (std::int64_t c = first; c < width; c += step) {
    Floats<kPack<T>> v = load(x, c, width), b{};
    const Floats<kPack<T>> w = load(a.w, c, width);
    if (centered && a.b) b = load(a.b, c, width);
    for (int j = 0; j < kPack<T>; ++j) v.v[j] = (v.v[j] - mean) * rstd * (w.v[j] + a.w_offset) + b.v[j];
    store(y, c, width, v);
  }
}

template <bool centered, class T>
void launch_norm(const NormForward<T>& a, bool whole_packs, const ExecContext& ctx) {
  const std::int64_t row_packs = divide_up(a.width, kPack<T>);
  auto in_registers = [&](auto plan) {
    using Plan = decltype(plan);
    launch(ctx, {grid_of(divide_up(a.count, Plan::groups * Plan::rows)), Plan::block},
           norm_in_registers<centered, Plan, T>, a);
  };
  if (whole_packs &&
      with_plan<ForwardPlan<8, 1, 2>, ForwardPlan<16, 1, 2>, ForwardPlan<32, 1, 2>, ForwardPlan<32, 2>,
                ForwardPlan<32, 3>, ForwardPlan<32, 4>, ForwardPlan<64, 3, 1, 64>, ForwardPlan<64, 4, 1, 64>,
                ForwardPlan<256, 2>, ForwardPlan<256, 4>, ForwardPlan<256, 8>>(row_packs, in_registers))
    return;
  if (row_packs <= 4 * kWarp)
    launch(ctx, {grid_of(divide_up(a.count, kBlock / kWarp))}, norm_in_loops<centered, kWarp, T>, a);
  else
    launch(ctx, {grid_of(a.count)}, norm_in_loops<centered, kBlock, T>, a);
}

}  // namespace ring::cuda
