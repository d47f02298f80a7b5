#include "kernels/attention/pools/pool_gate.h"

#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

constexpr int kTile = 32;  // rows and columns of a transposed tile

// Computes gradients of gates: one warp per head of each row, r = row * heads + head.
template <class T>
__global__ void __launch_bounds__(kBlock)
    gate_gradients(RowsOf<T> dout, RowsOf<T> attended, const float* pooled, const float* pooled_lse, const float* lse,
                   float* out, std::int64_t heads) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t rows = dout.count / heads, first = blockIdx.x * std::int64_t{kWarps} + threadIdx.x / kWarp;
  for (std::int64_t r = first; r < dout.count; r += gridDim.x * std::int64_t{kWarps}) {
    const std::int64_t at = r % heads * rows + r / heads;
    float sum = 0;
    for (std::int64_t i = lane; i < dout.width; i += kWarp)
      sum += to_float(dout[r][i]) * (pooled[r * dout.width + i] - to_float(attended[r][i]));
    sum = warp_sum(sum);
    if (lane == 0) out[at] = isfinite(pooled_lse[at]) ? expf(pooled_lse[at] - lse[at]) * sum : 0.0f;
  }
}

__global__ void __launch_bounds__(kBlock)
    mean_gates(const float* gates, const float* pooled_lse, const float* lse, float* out, std::int64_t count) {
  const std::int64_t stride = gridDim.x * std::int64_t{kBlock};
  for (std::int64_t i = blockIdx.x * std::int64_t{kBlock} + threadIdx.x; i < count; i += stride)
    out[i] = isfinite(pooled_lse[i]) ? expf(pooled_lse[i] - lse[i]) * gates[i] : 0.0f;
}

void run(const PoolGate& a, const ExecContext& ctx) {
  check(a);
  if (a.lse.numel() == 0) return;
  const float *pooled_lse = device_data<float>(a.pooled_lse), *lse = device_data<float>(a.lse);
  float* const out = device_data<float>(a.out);
  if (!a.dout.defined())
    return launch(ctx, elements(ctx, a.lse.numel(), 1), mean_gates, device_data<float>(a.gates), pooled_lse, lse, out,
                  a.lse.numel());
  const Launch shape{grid_of(std::min(divide_up(a.lse.numel(), std::int64_t{kWarps}), resident_blocks(ctx)))};
  visit_float("pool_gate", a.dout.dtype(), [&]<class T>() {
    launch(ctx, shape, gate_gradients<T>, device_rows<T>("pool_gate", "dout", a.dout),
           device_rows<T>("pool_gate", "attended", a.attended), device_data<float>(a.pooled), pooled_lse, lse, out,
           a.lse.dim(0));
  });
}

// Writes out = beta out + (x transposed): one thread block per tile of x.
template <class T, class Out>
__global__ void __launch_bounds__(kBlock)
    transpose(const T* x, Out* out, std::int64_t rows, std::int64_t columns, std::int64_t tiles, float beta) {
  __shared__ float tile[kTile][kTile + 1];
  const int lane = static_cast<int>(threadIdx.x) % kTile, warp = static_cast<int>(threadIdx.x) / kTile;
  const std::int64_t row = blockIdx.x / tiles * kTile, column = blockIdx.x % tiles * kTile;
  for (int r = warp; r < kTile; r += kBlock / kTile)
    if (row + r < rows && column + lane < columns) tile[r][lane] = to_float(x[(row + r) * columns + column + lane]);
  __syncthreads();
  for (int c = warp; c < kTile; c += kBlock / kTile) {
    if (column + c >= columns || row + lane >= rows) continue;
    Out* const to = out + (column + c) * rows + row + lane;
    *to = from_float<Out>((beta == 0.0f ? 0.0f : beta * to_float(*to)) + tile[lane][c]);
  }
}

void run_transpose(const Transpose& a, const ExecContext& ctx) {
  check(a);
  const std::int64_t rows = a.x.dim(0), columns = a.x.dim(1), tiles = divide_up(columns, kTile);
  visit_float("transpose", a.x.dtype(), [&]<class T>() {
    visit_float("transpose", a.out.dtype(), [&]<class Out>() {
      launch(ctx, {grid_of(divide_up(rows, kTile) * tiles)}, transpose<T, Out>, device_data<T>(a.x),
             device_data<Out>(a.out), rows, columns, tiles, a.beta);
    });
  });
}

const bool added_pool_gate[] = {pool_gate_kernel.add(Backend::cuda, {"warps", run}),
                                transpose_kernel.add(Backend::cuda, {"tiles", run_transpose})};

}  // namespace
}  // namespace ring::cuda
