#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/linear_attention/gated_norm.h"
#include "kernels/matmul.h"

namespace ring::cuda {
namespace {

// Row r of x, y and their gradients starts at r * width. Row r of z is head r % heads of token r / heads.
template <class T>
struct GatedRows {
  const T *x, *w;
  StridedRows<const T> z;
  Divider heads;
  std::int64_t rows;
  int width;
  float eps;

  __device__ const T* gate(std::int64_t row) const {
    const std::uint32_t n = static_cast<std::uint32_t>(row), token = heads.quotient(n);
    return z.at(token, n - token * heads.divisor);
  }
};

// Returns 1 / the norm of a row. `group` neighbouring lanes share a row; all lanes of the warp must call it.
template <int group, class T>
__device__ inline float gated_rstd(const GatedRows<T>& a, std::int64_t row, int lane) {
  float sum = 0;
  if (row < a.rows)
    for (int c = lane * kPack<T>; c < a.width; c += group * kPack<T>)
      for (const float v : load(a.x + row * a.width, c, a.width).v) sum += v * v;
  return rsqrtf(warp_sum<group>(sum) / static_cast<float>(a.width) + a.eps);
}

template <int group, class T>
__global__ void __launch_bounds__(kBlock) gated_norm(GatedRows<T> a, T* y) {
  const std::int64_t row = thread_x() / group;
  const int lane = static_cast<int>(threadIdx.x) % group;
  const float r = gated_rstd<group>(a, row, lane);
  if (row >= a.rows) return;
  const T *x = a.x + row * a.width, *z = a.gate(row);
  for (int c = lane * kPack<T>; c < a.width; c += group * kPack<T>) {
    Floats<kPack<T>> f = load(x, c, a.width);
    const Floats<kPack<T>> w = load(a.w, c, a.width), gate = load(z, c, a.width);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) f.v[i] = f.v[i] * r * w.v[i] * gate.v[i] * sigmoid(gate.v[i]);
    store(y + row * a.width, c, a.width, f);
  }
}

template <class T>
struct GatedGradients {
  const T* dy;
  T* dx;              // null if not wanted
  StridedRows<T> dz;  // data: null if not wanted
  float beta_x, beta_z;
  float* parts;  // [thread blocks, width]: sums of dw of each thread block
};

// Adds a row to the group's sums of dw, and stores dx and dz. All lanes of the warp must call it, also for rows past
// the end.
template <int group, class T>
__device__ inline void gated_row(const GatedRows<T>& a, const GatedGradients<T>& d, std::int64_t row, int lane,
                                 float* sums) {
  const float r = gated_rstd<group>(a, row, lane);
  const int end = row < a.rows ? a.width : 0;
  if (end == 0) row = 0;
  const T *x = a.x + row * a.width, *dy = d.dy + row * a.width, *z = a.gate(row);
  const std::uint32_t token = a.heads.quotient(static_cast<std::uint32_t>(row));
  T* dz = d.dz.data ? d.dz.at(token, static_cast<std::uint32_t>(row) - token * a.heads.divisor) : nullptr;
  float along = 0;  // sum of g x, with g = dy silu(z) w
  for (int c = lane * kPack<T>; c < end; c += group * kPack<T>) {
    const auto f = load(x, c, end), w = load(a.w, c, end), gate = load(z, c, end), g = load(dy, c, end);
    Floats<kPack<T>> of_gate;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const float s = sigmoid(gate.v[i]), gated = g.v[i] * gate.v[i] * s, normed = f.v[i] * r;
      along += gated * w.v[i] * f.v[i];
      if (c + i < end) sums[c + i] += gated * normed;
      of_gate.v[i] = g.v[i] * normed * w.v[i] * s * (1 + gate.v[i] * (1 - s));
    }
    if (dz) accumulate(dz, c, end, d.beta_z, of_gate);
  }
  if (!d.dx) return;  // the same for all threads
  const float factor = r * r * r * warp_sum<group>(along) / static_cast<float>(a.width);
  for (int c = lane * kPack<T>; c < end; c += group * kPack<T>) {
    auto f = load(x, c, end);
    const auto w = load(a.w, c, end), gate = load(z, c, end), g = load(dy, c, end);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) f.v[i] = g.v[i] * gate.v[i] * sigmoid(gate.v[i]) * w.v[i] * r - f.v[i] * factor;
    accumulate(d.dx + row * a.width, c, end, d.beta_x, f);
  }
}

// Shared memory holds the sums of dw of each group, [kBlock / group, width]; a lane only touches its own columns. The
// grid depends only on the shape.
template <int group, class T>
__global__ void __launch_bounds__(kBlock) gated_norm_backward(GatedRows<T> a, GatedGradients<T> d) {
  extern __shared__ float gated_sums[];
  constexpr int groups = kBlock / group;
  const int lane = static_cast<int>(threadIdx.x) % group, in_block = static_cast<int>(threadIdx.x) / group;
  for (int c = static_cast<int>(threadIdx.x); c < groups * a.width; c += kBlock) gated_sums[c] = 0;
  __syncthreads();
  const std::int64_t step = std::int64_t{gridDim.x} * groups;
  for (std::int64_t first = std::int64_t{blockIdx.x} * groups; first < a.rows; first += step)
    gated_row<group>(a, d, first + in_block, lane, gated_sums + in_block * a.width);
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < a.width; c += kBlock) {
    float sum = 0;
    for (int g = 0; g < groups; ++g) sum += gated_sums[g * a.width + c];
    d.parts[blockIdx.x * std::int64_t{a.width} + c] = sum;
  }
}

// Returns a view of z [N,H D] with one row of D values per token and head.
template <class T>
StridedRows<T> gate_heads(const char* op, const char* name, const Tensor& x, const Tensor& z) {
  check_shape(op, name, z, {x.dim(0), x.dim(1) * x.dim(2)});
  const RowsOf<T> rows = device_rows<T>(op, name, z);
  return {rows.data, rows.outer_stride, x.dim(2)};
}

template <class T, class Args>
GatedRows<T> gated_rows(const char* op, const Args& a) {
  RING_CHECK(a.x.defined() && a.x.shape().size() == 3 && a.x.is_contiguous(), op, ": x is ", describe(a.x),
             ", expected contiguous [N,H,D]");
  check_numel(op, "w", a.w, a.x.dim(2));
  RING_CHECK(a.x.dim(2) <= 4096, op, ": heads of ", a.x.dim(2), " channels, but CUDA kernels support at most 4096");
  const StridedRows<T> z = gate_heads<T>(op, "z", a.x, a.z);
  const std::int64_t rows = a.x.dim(0) * a.x.dim(1);
  return {device_data<T>(a.x),
          device_data<T>(a.w),
          {z.data, z.outer_stride, z.inner_stride},
          divider_of(op, rows, a.x.dim(1)),
          rows,
          static_cast<int>(a.x.dim(2)),
          a.eps};
}

// Calls f with the number of lanes that a row of `packs` packs needs.
template <class F>
void with_lanes(std::int64_t packs, const F& f) {
  if (packs <= 8) return f(std::integral_constant<int, 8>{});
  if (packs <= 16) return f(std::integral_constant<int, 16>{});
  f(std::integral_constant<int, kWarp>{});
}

void run_gated_norm(const GatedNorm& args, const ExecContext& ctx) {
  visit_float("gated_norm", args.x.dtype(), [&]<class T>() {
    const GatedRows<T> a = gated_rows<T>("gated_norm", args);
    check_numel("gated_norm", "y", args.y, args.x.numel());
    with_lanes(divide_up(a.width, kPack<T>), [&](auto group) {
      launch(ctx, {grid_of(divide_up(a.rows * group(), kBlock))}, gated_norm<group(), T>, a, device_data<T>(args.y));
    });
  });
}

void run_gated_norm_backward(const GatedNormBackward& args, const ExecContext& ctx) {
  constexpr const char* op = "gated_norm_backward";
  constexpr std::int64_t max_parts = 132 * 4, rows_per_group = 4;
  visit_float(op, args.x.dtype(), [&]<class T>() {
    const GatedRows<T> a = gated_rows<T>(op, args);
    check_numel(op, "dy", args.dy, args.x.numel());
    if (args.dx.defined()) check_numel(op, "dx", args.dx, args.x.numel());
    GatedGradients<T> d{device_data<T>(args.dy), device_data<T>(args.dx), {}, args.beta_x, args.beta_z, nullptr};
    if (args.dz.defined()) d.dz = gate_heads<T>(op, "dz", args.x, args.dz);
    with_lanes(divide_up(a.width, kPack<T>), [&](auto group) {
      constexpr int groups = kBlock / group();
      const std::int64_t blocks = std::clamp(divide_up(a.rows, groups * rows_per_group), std::int64_t{1}, max_parts);
      const Shape parts_shape{blocks, a.width};
      const Tensor parts = ctx.empty(parts_shape);
      d.parts = parts.data<float>();
      launch(ctx, {grid_of(blocks), kBlock, static_cast<std::size_t>(groups * a.width) * sizeof(float)},
             gated_norm_backward<group(), T>, a, d);
      if (args.dw.defined()) column_sum_kernel({parts, args.dw, args.beta_w}, ctx);
    });
  });
}

const bool added_gated_norm[] = {gated_norm_kernel.add(Backend::cuda, {"rows", run_gated_norm}),
                                 gated_norm_backward_kernel.add(Backend::cuda, {"two_stage", run_gated_norm_backward})};

}  // namespace
}  // namespace ring::cuda
