#include "kernels/norm.h"

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

// A row is the work of `group` threads: a warp for short ones, a block for long ones.
constexpr std::int64_t kWarpRow = 1024;  // longest row of a warp

template <int group>
struct Place {
  static constexpr int kGroups = kBlock / group;  // of one block
  int lane = static_cast<int>(threadIdx.x) % group, in_block = static_cast<int>(threadIdx.x) / group;
  std::int64_t row = std::int64_t{blockIdx.x} * kGroups + in_block, rows = std::int64_t{gridDim.x} * kGroups;
};

template <int group>
__global__ void rms_norm_f32(Rows x, Rows y, const float* w, float* rstd, float eps) {
  const Place<group> place;
  const std::int64_t n = place.row, width = x.width;
  if (n >= x.count) return;  // a whole group at once
  float sum = 0;
  for (std::int64_t c = 4 * place.lane; c < width; c += 4 * group)
    for (float v : load(x[n], c, width).v) sum += v * v;
  const float r = 1.0f / sqrtf(group_sum<group>(sum) / static_cast<float>(width) + eps);
  if (place.lane == 0) rstd[n] = r;
  for (std::int64_t c = 4 * place.lane; c < width; c += 4 * group) {
    Quad q = load(x[n], c, width);
    const Quad weight = load(w, c, width);
    for (int j = 0; j < 4; ++j) q.v[j] = q.v[j] * r * weight.v[j];
    store(y[n], c, width, q);
  }
}

void run_rms_norm(const RmsNorm& args, const Context& ctx) {
  const Rows x = rows_of("rms_norm", "x", args.x), y = rows_of("rms_norm", "y", args.y);
  check_shape("rms_norm", "y", args.y, args.x.shape());
  check_numel("rms_norm", "w", args.w, x.width);
  check_numel("rms_norm", "rstd", args.rstd, x.count);
  const bool by_warp = x.width <= kWarpRow;
  launch(ctx, {grid_of(divide_up(x.count, by_warp ? kBlock / kWarp : 1))},
         by_warp ? rms_norm_f32<kWarp> : rms_norm_f32<kBlock>, x, y, args.w.data<float>(), args.rstd.data<float>(),
         args.eps);
}

struct BackwardRows {
  Rows x, dy, dx;  // dx.data null: not wanted
  const float *w, *rstd;
  float beta_x;
  float* parts;  // [groups, width], null: dw not wanted
};

// With g = dy * w: dx = rstd * g - x * rstd^3 * mean(g * x), dw = sum over rows of dy * x * rstd. Each group sums dw
// over its rows in shared memory, where a thread touches only its own columns; add_parts sums over the groups.
template <int group>
__global__ void rms_norm_backward_f32(BackwardRows a) {
  extern __shared__ float shared[];
  const Place<group> place;
  const std::int64_t width = a.x.width;
  float* dw = shared + place.in_block * width;
  for (std::int64_t c = 4 * place.lane; a.parts && c < width; c += 4 * group) store(dw, c, width, Quad{});
  for (std::int64_t n = place.row; n < a.x.count; n += place.rows) {
    const float *x = a.x[n], *dy = a.dy[n], r = a.rstd[n];
    float sum = 0;
    for (std::int64_t c = 4 * place.lane; c < width; c += 4 * group) {
      const Quad in = load(x, c, width), g = load(dy, c, width), w = load(a.w, c, width);
      Quad d;
      for (int j = 0; j < 4; ++j) {
        sum += g.v[j] * w.v[j] * in.v[j];
        d.v[j] = g.v[j] * in.v[j] * r;
      }
      if (a.parts) accumulate(dw, c, width, 1.0f, d);
    }
    if (!a.dx.data) continue;
    const float k = group_sum<group>(sum) * r * r * r / static_cast<float>(width);
    for (std::int64_t c = 4 * place.lane; c < width; c += 4 * group) {
      const Quad in = load(x, c, width), w = load(a.w, c, width);
      Quad g = load(dy, c, width);
      for (int j = 0; j < 4; ++j) g.v[j] = g.v[j] * w.v[j] * r - k * in.v[j];
      accumulate(a.dx[n], c, width, a.beta_x, g);
    }
  }
  for (std::int64_t c = 4 * place.lane; a.parts && c < width; c += 4 * group)
    store(a.parts + place.row * width, c, width, load(dw, c, width));
}

// out[c] = beta * out[c] + sum over p of parts[p][c]; a warp's lanes take neighbouring columns, its block's warps every
// eighth part.
__global__ void add_parts(const float* parts, std::int64_t count, std::int64_t width, float* out, float beta) {
  __shared__ float sums[kBlock / kWarp][kWarp];
  const std::int64_t c = std::int64_t{blockIdx.x} * kWarp + threadIdx.x;
  float sum = 0;
  for (std::int64_t p = threadIdx.y; c < width && p < count; p += kBlock / kWarp) sum += parts[p * width + c];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= width) return;
  for (int i = 1; i < kBlock / kWarp; ++i) sum += sums[i][threadIdx.x];
  out[c] = beta == 0 ? sum : beta * out[c] + sum;
}

template <int group>
void launch_backward(BackwardRows rows, const RmsNormBackward& args, const Context& ctx) {
  constexpr std::int64_t groups = Place<group>::kGroups, most_parts = 4096, rows_per_part = 8;
  const std::int64_t width = rows.x.width, count = rows.x.count;
  if (!args.dw.defined()) return launch(ctx, {grid_of(divide_up(count, groups))}, rms_norm_backward_f32<group>, rows);
  // Enough rows in each part that writing it costs little; a function of the shape alone, for the same bits everywhere.
  const std::int64_t blocks = std::clamp(count / (rows_per_part * groups), std::int64_t{1}, most_parts / groups);
  const Tensor parts = ctx.empty({blocks * groups, width});
  rows.parts = parts.data<float>();
  const auto shared_bytes = static_cast<std::size_t>(groups * width) * sizeof(float);
  RING_CUDA_CHECK(cudaFuncSetAttribute(rms_norm_backward_f32<group>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(shared_bytes)));
  launch(ctx, {grid_of(blocks), kBlock, shared_bytes}, rms_norm_backward_f32<group>, rows);
  launch(ctx, {grid_of(divide_up(width, kWarp)), {kWarp, kBlock / kWarp}}, add_parts, rows.parts, parts.dim(0), width,
         args.dw.data<float>(), args.beta_w);
}

void run_rms_norm_backward(const RmsNormBackward& args, const Context& ctx) {
  const char* op = "rms_norm_backward";
  BackwardRows rows{};
  rows.x = rows_of(op, "x", args.x);
  rows.dy = rows_of(op, "dy", args.dy);
  if (args.dx.defined()) rows.dx = rows_of(op, "dx", args.dx);
  check_shape(op, "dy", args.dy, args.x.shape());
  if (args.dx.defined()) check_shape(op, "dx", args.dx, args.x.shape());
  if (args.dw.defined()) check_numel(op, "dw", args.dw, rows.x.width);
  check_numel(op, "w", args.w, rows.x.width);
  check_numel(op, "rstd", args.rstd, rows.x.count);
  rows.w = args.w.data<float>();
  rows.rstd = args.rstd.data<float>();
  rows.beta_x = args.beta_x;
  if (rows.x.width <= kWarpRow)
    launch_backward<kWarp>(rows, args, ctx);
  else
    launch_backward<kBlock>(rows, args, ctx);
}

const bool added[] = {
    rms_norm_kernel.add(Backend::cuda, {"f32", run_rms_norm}),
    rms_norm_backward_kernel.add(Backend::cuda, {"two_stage", run_rms_norm_backward}),
};

}  // namespace
}  // namespace ring::cuda
