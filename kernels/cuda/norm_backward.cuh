#pragma once
// Backward of RMSNorm and, if `centered`, of LayerNorm. With h = (x - mean) * rstd (mean = 0
// unless centered) and g = dy * (w + w_offset):
//   dx = rstd * (g - mean(g) - h * mean(g * h)), mean(g) only if centered;  dw = sum of dy * h;  db = sum of dy.
// The first kernel reads x and dy once. It writes dx and accumulates partial sums of dw and db in registers, while the
// next rows are being copied to shared memory. The second kernel adds the partial sums. The number of partial sums only
// depends on the shape, so results are bit-identical from run to run.

#include <type_traits>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/raise_max.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {

template <class T>
struct NormBackward {
  StridedRows<T> x, dy, dx;  // dx.data: null if not wanted
  Divider inner;
  std::uint32_t count;
  int width;
  const T* w;
  const float *mean, *rstd;  // mean: only if centered
  float beta_x, w_offset;
  float* max;    // raised to the maximum magnitude of dx; null if not wanted
  float* parts;  // [parts, sums, width]: partial sums of dw and, if centered, db; null if not wanted
};
template <bool centered>
constexpr int kNormSums = centered ? 2 : 1;

// `group` threads of a thread block share a row, and each holds `packs` packs (16-byte vectors) of the row. Each group
// has `stages` rows in shared memory or in flight. `blocks` thread blocks share an SM. If a warp holds a whole row and
// its sums of dw, it needs no barrier and half the instructions per byte. The stages, not many resident warps, keep
// enough bytes in flight.
template <int group_, int packs_, int stages_, int blocks_>
struct BackwardPlan {
  static constexpr int group = group_, packs = packs_, stages = stages_, blocks = blocks_, groups = kBlock / group_;
  static constexpr std::int64_t max_parts = 132 * blocks;  // as many thread blocks as an H200 runs at once
};

// Size of a stage in 16-byte words. Each thread has slots for its packs of x, dy and (if beta_x != 0) dx, followed by
// rstd and mean. A thread only reads slots that it has filled itself, so stages need no barriers.
template <bool centered, class Plan>
struct Staging {
  static constexpr int scalars = kNormSums<centered> * kBlock / 4;
  __host__ __device__ static constexpr int words(bool add) { return (add ? 3 : 2) * Plan::packs * kBlock + scalars; }
};

template <bool centered, class Plan, class T>
__device__ inline void stage_row(const NormBackward<T>& a, std::uint32_t n, bool add, uint4* stage) {
  constexpr int packs = Plan::packs, group = Plan::group;
  const int lane = static_cast<int>(threadIdx.x) % group, row_packs = a.width / kPack<T>;
  const bool exists = n < a.count;
  const std::uint32_t outer = a.inner.quotient(n), inner = n - outer * a.inner.divisor;
  const T *x = a.x.at(outer, inner), *dy = a.dy.at(outer, inner), *dx = a.dx.at(outer, inner);
  uint4* to = stage + threadIdx.x;
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const bool inside = exists && lane + k * group < row_packs;
    const int c = inside ? (lane + k * group) * kPack<T> : 0;
    cp_async16(to + k * kBlock, inside ? x + c : a.x.data, inside);
    cp_async16(to + (packs + k) * kBlock, inside ? dy + c : a.dy.data, inside);
    if (add) cp_async16(to + (2 * packs + k) * kBlock, inside ? dx + c : a.dx.data, inside);
  }
  if (!exists) return;
  float* scalars = reinterpret_cast<float*>(stage + (add ? 3 : 2) * packs * kBlock) + threadIdx.x;
  cp_async4(scalars, a.rstd + n);
  if (centered) cp_async4(scalars + kBlock, a.mean + n);
}

// Adds the partial sums of the thread block's groups in a fixed order and writes row [width] of `parts`. All threads
// must call it. Overwrites `shared`.
template <class Plan, class T>
__device__ inline void store_part(const float (&sums)[Plan::packs][kPack<T>], int width, float* to, float4* shared) {
  constexpr int packs = Plan::packs, group = Plan::group, groups = Plan::groups, quads = kPack<T> / 4;
  constexpr int row = group * packs * quads;
  const int lane = static_cast<int>(threadIdx.x) % group, in_block = static_cast<int>(threadIdx.x) / group;
  auto* out = reinterpret_cast<float4*>(to);
  if constexpr (groups > 1) __syncthreads();
#pragma unroll
  for (int k = 0; k < packs; ++k)
#pragma unroll
    for (int q = 0; q < quads; ++q) {
      const float4 v = make_float4(sums[k][4 * q], sums[k][4 * q + 1], sums[k][4 * q + 2], sums[k][4 * q + 3]);
      const int at = (lane + k * group) * quads + q;
      if constexpr (groups > 1)
        shared[in_block * row + at] = v;
      else if (at < width / 4)
        out[at] = v;
    }
  if constexpr (groups > 1) {
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x); at < width / 4; at += kBlock) {
      float4 sum = shared[at];
#pragma unroll 4
      for (int g = 1; g < groups; ++g) {
        const float4 v = shared[g * row + at];
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      }
      out[at] = sum;
    }
  }
}

// Loads a pack from shared memory again, even if an earlier load had the same address. x and dy are used for the sums
// and later for dx. The compiler would keep them in registers between the two uses, which limits the number of resident
// thread blocks.
template <class T>
__device__ __forceinline__ Pack<T> read_again(const uint4* shared) {
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  Pack<T> p;
  asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(p.bits[0]), "=r"(p.bits[1]), "=r"(p.bits[2]), "=r"(p.bits[3])
               : "r"(from));
  return p;
}

// A staged row, as seen by one thread.
template <bool centered, class Plan, class T>
struct StagedRow {
  static constexpr int size = kPack<T>;
  const uint4* packs;
  float rstd, mean;

  __device__ StagedRow(const uint4* stage, bool add, bool exists) : packs(stage + threadIdx.x) {
    const float* s = reinterpret_cast<const float*>(stage + (add ? 3 : 2) * Plan::packs * kBlock) + threadIdx.x;
    rstd = exists ? s[0] : 0.0f;  // a row past the end was not copied: s[0] is undefined
    mean = centered && exists ? s[kBlock] : 0.0f;
  }
  __device__ Floats<size> get(int tensor, int k) const {
    return unpack(read_again<T>(packs + (tensor * Plan::packs + k) * kBlock));
  }
};

// Makes the weights opaque to the compiler. Otherwise it would convert them to f32 only once and keep them in twice the
// registers.
template <class T, int packs>
__device__ __forceinline__ void keep_packed(Pack<T> (&weights)[packs]) {
#pragma unroll
  for (Pack<T>& w : weights)
#pragma unroll
    for (std::uint32_t& bits : w.bits) asm volatile("" : "+r"(bits));
}

template <bool centered, class Plan, class T>
struct NormSharesOf {
  float dw[Plan::packs][kPack<T>] = {}, db[centered ? Plan::packs : 1][kPack<T>] = {};
};

// Adds a row to the thread's partial sums of dw and db. Computes `sum`, zero on entry: the sums of g * h and of g.
template <bool centered, class Plan, class T>
__device__ __forceinline__ void add_row(const StagedRow<centered, Plan, T>& row, const Pack<T> (&weights)[Plan::packs],
                                        float w_offset, NormSharesOf<centered, Plan, T>& shares,
                                        float (&sum)[kNormSums<centered>]) {
#pragma unroll
  for (int k = 0; k < Plan::packs; ++k) {
    const auto x = row.get(0, k), dy = row.get(1, k), w = unpack(weights[k]);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      const float product = dy.v[j] * (x.v[j] - row.mean);
      shares.dw[k][j] += product * row.rstd;
      sum[0] += product * (w.v[j] + w_offset);
      if constexpr (centered) shares.db[k][j] += dy.v[j], sum[1] += dy.v[j] * (w.v[j] + w_offset);
    }
  }
  sum[0] *= row.rstd;
}

// Writes dx of a row, and raises `largest` to the maximum magnitude of dx before rounding.
template <bool centered, class Plan, class T>
__device__ __forceinline__ void store_dx(const StagedRow<centered, Plan, T>& row, const Pack<T> (&weights)[Plan::packs],
                                         const float (&sum)[kNormSums<centered>], const NormBackward<T>& a, T* to,
                                         float& largest) {
  const int lane = static_cast<int>(threadIdx.x) % Plan::group, row_packs = a.width / kPack<T>;
  // Computes dx = rstd * g - rest - (x - mean) * of_x. of_x and rest are the same for the whole row.
  const float scale = 1.0f / static_cast<float>(a.width), of_x = row.rstd * row.rstd * (sum[0] * scale);
  const float rest = centered ? row.rstd * (sum[kNormSums<centered> - 1] * scale) : 0.0f;
#pragma unroll
  for (int k = 0; k < Plan::packs; ++k) {
    const int c = lane + k * Plan::group;
    if (c >= row_packs) continue;
    const auto x = row.get(0, k), dy = row.get(1, k), w = unpack(weights[k]);
    Floats<kPack<T>> d;
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      const float g = dy.v[j] * (w.v[j] + a.w_offset);
      d.v[j] = row.rstd * g - rest - (x.v[j] - row.mean) * of_x;
    }
    if (a.beta_x != 0) {
      const auto old = row.get(2, k);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) d.v[j] += a.beta_x * old.v[j];
    }
#pragma unroll
    for (const float v : d.v) largest = fmaxf(largest, fabsf(v));
    store_pack(to + c * kPack<T>, pack<T>(d));
  }
}

template <bool centered, class Plan, class T>
__global__ void __launch_bounds__(kBlock, Plan::blocks) norm_backward_staged(NormBackward<T> a) {
  extern __shared__ uint4 shared[];
  constexpr int group = Plan::group, packs = Plan::packs, stages = Plan::stages, sums = kNormSums<centered>;
  const bool want_dx = a.dx.data != nullptr, add = want_dx && a.beta_x != 0;
  const int stage_words = Staging<centered, Plan>::words(add);
  const std::uint32_t step = gridDim.x * Plan::groups, in_block = threadIdx.x / group;
  auto copy = [&](std::uint32_t base, int stage) {
    if (base < a.count) stage_row<centered, Plan>(a, base + in_block, add, shared + stage * stage_words);
    cp_async_commit();
  };
  std::uint32_t base = blockIdx.x * Plan::groups;
#pragma unroll
  for (int s = 0; s < stages - 1; ++s) copy(base + s * step, s);
  Pack<T> weights[packs];
  NormSharesOf<centered, Plan, T> shares;
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const int c = static_cast<int>(threadIdx.x) % group + k * group;
    weights[k] = c < a.width / kPack<T> ? load_pack(a.w + c * kPack<T>) : Pack<T>{};
  }
  // All groups of the thread block run every iteration, even for rows past the end, since team_sums() needs all lanes
  // of a warp.
  bool odd = false;
  float largest = 0;
  for (int stage = 0; base < a.count; base += step, stage = stage + 1 == stages ? 0 : stage + 1, odd = !odd) {
    // Overwrites the stage that was read in the last round.
    copy(base + (stages - 1) * step, stage == 0 ? stages - 1 : stage - 1);
    cp_async_wait<stages - 1>();
    keep_packed(weights);
    const std::uint32_t n = base + in_block;
    const StagedRow<centered, Plan, T> row(shared + stage * stage_words, add, n < a.count);
    float sum[sums] = {};
    add_row(row, weights, a.w_offset, shares, sum);
    if (!want_dx) continue;
    team_sums<group, kBlock>(sum, odd);
    const std::uint32_t outer = a.inner.quotient(n), inner = n - outer * a.inner.divisor;
    if (n < a.count) store_dx(row, weights, sum, a, a.dx.at(outer, inner), largest);
  }
  if (a.max) {
    largest = max_over_lanes(largest, kWarp);
    if (threadIdx.x % kWarp == 0) raise_max(a.max, to_float(from_float<T>(largest)));
  }
  if (!a.parts) return;
  cp_async_wait<0>();
  float* part = a.parts + std::int64_t{blockIdx.x} * sums * a.width;
  store_part<Plan, T>(shares.dw, a.width, part, reinterpret_cast<float4*>(shared));
  if constexpr (centered) store_part<Plan, T>(shares.db, a.width, part + a.width, reinterpret_cast<float4*>(shared));
}

// Sums packs of columns of dw and db, for rows that are too long for registers or do not consist of whole packs. A
// thread adds every threads_y()-th row. Must run before dx is written, since dx may alias x or dy.
template <bool centered, class T>
__global__ void norm_column_parts(NormBackward<T> a) {
  const std::int64_t c = kPack<T> * thread_x(), width = a.width;
  if (c >= width) return;
  const auto part = static_cast<std::uint32_t>(thread_y()), parts = static_cast<std::uint32_t>(threads_y());
  Floats<kPack<T>> dw{}, db{};
#pragma unroll 2
  for (std::uint32_t n = part; n < a.count; n += parts) {
    const std::uint32_t outer = a.inner.quotient(n), inner = n - outer * a.inner.divisor;
    const Floats<kPack<T>> x = load<T>(a.x.at(outer, inner), c, width), dy = load<T>(a.dy.at(outer, inner), c, width);
    const float rstd = a.rstd[n], mean = centered ? a.mean[n] : 0.0f;
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      dw.v[j] += dy.v[j] * (x.v[j] - mean) * rstd;
      db.v[j] += dy.v[j];
    }
  }
  float* to = a.parts + std::int64_t{part} * kNormSums<centered> * width;
  for (int j = 0; j < kPack<T> && c + j < width; ++j) {
    to[c + j] = dw.v[j];
    if (centered) to[width + c + j] = db.v[j];
  }
}

template <bool centered, int group, class T>
__global__ void __launch_bounds__(kBlock) norm_dx_in_loops(NormBackward<T> a) {
  constexpr std::int64_t step = group * kPack<T>;
  const std::uint32_t n = blockIdx.x * (kBlock / group) + threadIdx.x / group;
  if (n >= a.count) return;  // all threads of a group return together
  const std::uint32_t outer = a.inner.quotient(n), inner = n - outer * a.inner.divisor;
  const T *x = a.x.at(outer, inner), *dy = a.dy.at(outer, inner);
  const std::int64_t first = std::int64_t{threadIdx.x % group} * kPack<T>, width = a.width;
  const float rstd = a.rstd[n], mean = centered ? a.mean[n] : 0.0f, scale = 1.0f / static_cast<float>(a.width);
  float sum[2] = {};
  for (std::int64_t c = first; c < width; c += step) {
    const Floats<kPack<T>> in = load(x, c, width), d = load(dy, c, width), w = load(a.w, c, width);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      const float g = d.v[j] * (w.v[j] + a.w_offset);
      sum[0] += g * (in.v[j] - mean) * rstd;
      sum[1] += g;
    }
  }
  group_sums<group>(sum);
  const float mean_gh = sum[0] * scale, mean_g = centered ? sum[1] * scale : 0.0f;
  T* to = a.dx.at(outer, inner);
  float largest = 0;
  for (std::int64_t c = first; c < width; c += step) {
    const Floats<kPack<T>> in = load(x, c, width), w = load(a.w, c, width);
    Floats<kPack<T>> d = load(dy, c, width);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      const float g = d.v[j] * (w.v[j] + a.w_offset);
      d.v[j] = rstd * (g - mean_g - (in.v[j] - mean) * rstd * mean_gh);
    }
    accumulate(to, c, width, a.beta_x, d);
    if (!a.max) continue;
    for (const float v : load(to, c, width).v) largest = fmaxf(largest, fabsf(v));
  }
  if (largest > 0) raise_max(a.max, largest);
}

// Destinations of the sums. A pointer is null if that gradient is not wanted or has a different type.
template <class Dst>
struct NormGradients {
  Dst *dw, *db;
  float beta_w, beta_b;
};

// dst[c] = beta * dst[c] + sum over p of parts[p][blockIdx.y][c]. The lanes of a warp take neighbouring columns, and
// each warp of the thread block takes every 32nd part.
template <class Dst>
__global__ void __launch_bounds__(kWarp* kWarp)
    add_norm_parts(const float* parts, std::int64_t count, std::int64_t width, NormGradients<Dst> to) {
  __shared__ float sums[kWarp][kWarp];
  const std::int64_t c = std::int64_t{blockIdx.x} * kWarp + threadIdx.x, stride = width * gridDim.y;
  Dst* out = blockIdx.y == 0 ? to.dw : to.db;
  if (!out) return;
  parts += blockIdx.y * width;
  float sum = 0;
  if (c < width) {
#pragma unroll 8
    for (std::int64_t p = threadIdx.y; p < count; p += kWarp) sum += parts[p * stride + c];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= width) return;
#pragma unroll
  for (int i = 1; i < kWarp; ++i) sum += sums[i][threadIdx.x];
  const float beta = blockIdx.y == 0 ? to.beta_w : to.beta_b;
  out[c] = from_float<Dst>(beta == 0 ? sum : beta * to_float(out[c]) + sum);
}

struct NormSums {
  Tensor dw{}, db{};  // undefined if not wanted
  float beta_w = 0, beta_b = 0;
  bool wanted() const { return dw.defined() || db.defined(); }
};

template <bool centered>
void launch_add_parts(const Tensor& parts, std::int64_t width, const NormSums& sums, const ExecContext& ctx) {
  for (const Tensor& t : {sums.dw, sums.db})
    RING_CHECK(!t.defined() || t.dtype() == DType::f32 || t.dtype() == DType::bf16, "norm: a gradient is ",
               describe(t));
  auto add = [&]<class Dst>(DType type) {
    auto data = [&](const Tensor& t) { return t.defined() && t.dtype() == type ? device_data<Dst>(t) : nullptr; };
    const NormGradients<Dst> to{data(sums.dw), data(sums.db), sums.beta_w, sums.beta_b};
    if (to.dw || to.db)
      launch(ctx, {grid_of(divide_up(width, kWarp), kNormSums<centered>), {kWarp, kWarp}}, add_norm_parts<Dst>,
             parts.data<float>(), parts.dim(0), width, to);
  };
  add.template operator()<float>(DType::f32);
  add.template operator()<__nv_bfloat16>(DType::bf16);
}

template <bool centered, class Plan, class T>
void launch_staged(NormBackward<T> a, const NormSums& sums, const ExecContext& ctx) {
  static_assert(Plan::groups == 1 ||
                    Plan::stages * Staging<centered, Plan>::words(false) * 16 >= kBlock * Plan::packs * kPack<T> * 4,
                "store_part puts the sums of all groups where the stages were");
  constexpr std::int64_t rows_per_group = 2;  // minimum at which writing the thread block's partial dw pays off
  const std::int64_t blocks =
      std::clamp(divide_up(a.count, rows_per_group * Plan::groups), std::int64_t{sums.wanted()}, Plan::max_parts);
  const Shape parts_shape{blocks, kNormSums<centered>, a.width};
  const Tensor parts = sums.wanted() ? ctx.empty(parts_shape) : Tensor{};
  if (sums.wanted()) a.parts = parts.data<float>();
  const auto words = static_cast<std::size_t>(Staging<centered, Plan>::words(a.dx.data && a.beta_x != 0));
  launch(ctx, {grid_of(blocks), kBlock, Plan::stages * words * sizeof(uint4)}, norm_backward_staged<centered, Plan, T>,
         a);
  if (sums.wanted()) launch_add_parts<centered>(parts, a.width, sums, ctx);
}

template <bool centered, class T>
void launch_norm_in_loops(NormBackward<T> a, const NormSums& sums, const ExecContext& ctx) {
  const std::int64_t row_packs = divide_up(a.width, kPack<T>);
  if (sums.wanted()) {
    constexpr std::int64_t rows_per_part = 8, fewest_parts = 8, max_parts = 1024, max_elements = 1 << 21;
    const std::int64_t most = std::clamp(max_elements / std::max(a.width, 1), fewest_parts, max_parts);
    const Launch shape = rows_by(std::clamp(divide_up(a.count, rows_per_part), std::int64_t{1}, most), row_packs);
    const Shape parts_shape{std::int64_t{shape.grid.y} * shape.block.y, kNormSums<centered>, a.width};
    const Tensor parts = ctx.empty(parts_shape);
    a.parts = parts.data<float>();
    launch(ctx, shape, norm_column_parts<centered, T>, a);
    launch_add_parts<centered>(parts, a.width, sums, ctx);
  }
  if (!a.dx.data) return;
  if (row_packs <= 4 * kWarp)
    launch(ctx, {grid_of(divide_up(a.count, kBlock / kWarp))}, norm_dx_in_loops<centered, kWarp, T>, a);
  else
    launch(ctx, {grid_of(a.count)}, norm_dx_in_loops<centered, kBlock, T>, a);
}

template <bool centered, class T>
void launch_norm_backward(const NormBackward<T>& a, bool whole_packs, const NormSums& sums, const ExecContext& ctx) {
  using Long = std::conditional_t<centered, BackwardPlan<128, 2, 2, 2>, BackwardPlan<32, 8, 2, 1>>;
  auto staged = [&](auto plan) { launch_staged<centered, decltype(plan)>(a, sums, ctx); };
  if (whole_packs && with_plan<BackwardPlan<8, 1, 3, 4>, BackwardPlan<16, 1, 3, 4>, BackwardPlan<32, 1, 3, 4>,
                               BackwardPlan<32, 2, 3, 2>, BackwardPlan<32, 3, 2, 2>, BackwardPlan<32, 4, 2, 2>,
                               BackwardPlan<32, 6, 2, 1>, Long, BackwardPlan<256, 2, 3, 2>, BackwardPlan<256, 4, 2, 2>,
                               BackwardPlan<256, 8, 2, 1>>(divide_up(a.width, kPack<T>), staged))
    return;
  launch_norm_in_loops<centered>(a, sums, ctx);
}

}  // namespace ring::cuda
