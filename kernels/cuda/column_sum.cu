#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/matmul.h"

namespace ring::cuda {
namespace {

// Destination of column sums: f32 or bf16; the other pointer is null. part_stride: from one part's results to the next.
struct Sums {
  float* f32;
  __nv_bfloat16* b16;
  std::int64_t part_stride;
  float beta;

  __device__ void write(std::int64_t part, std::int64_t column, float sum) const {
    const std::int64_t i = part * part_stride + column;
    if (f32)
      f32[i] = beta == 0 ? sum : beta * f32[i] + sum;
    else
      b16[i] = __float2bfloat16_rn(beta == 0 ? sum : beta * __bfloat162float(b16[i]) + sum);
  }
};

constexpr int kRowsAtOnce = 8;  // rows that a thread loads at a time, with all loads in flight together

// A thread block sums `rows_per_part` rows of blockDim.x * n columns, blockDim.y rows at a time with n columns per
// thread, and then adds over threadIdx.y in a tree. For the same T and n, the order depends only on the shape.
template <class T, int n>
__global__ void __launch_bounds__(kBlock)
    sum_columns(const T* x, std::int64_t rows, std::int64_t width, std::int64_t stride, int rows_per_part, Sums out) {
  __shared__ float shared[kBlock * n];
  const int threads_y = static_cast<int>(blockDim.y), thread_y = static_cast<int>(threadIdx.y);
  const std::int64_t column = thread_x() * n, begin = std::int64_t{blockIdx.y} * rows_per_part;
  const int count = column < width ? static_cast<int>(min(rows - begin, std::int64_t{rows_per_part})) : 0;
  const T* at = x + begin * stride + column;
  float sums[n] = {};
  const auto add = [&](const Pack<T, n>& p) {
    const Floats<n> f = unpack(p);
#pragma unroll
    for (int j = 0; j < n; ++j) sums[j] += f.v[j];
  };
  int r = thread_y;
  for (; r + (kRowsAtOnce - 1) * threads_y < count; r += kRowsAtOnce * threads_y) {
    Pack<T, n> packs[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) packs[i] = load_pack<T, n>(at + (r + i * threads_y) * stride);
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) add(packs[i]);
  }
  for (; r < count; r += threads_y) add(load_pack<T, n>(at + r * stride));
  float* mine = shared + (thread_y * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x));
#pragma unroll
  for (int j = 0; j < n; ++j) mine[j * kBlock] = sums[j];
  for (int half = threads_y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread_y >= half) continue;
#pragma unroll
    for (int j = 0; j < n; ++j) mine[j * kBlock] += mine[j * kBlock + half * static_cast<int>(blockDim.x)];
  }
  if (thread_y != 0 || column >= width) return;
#pragma unroll
  for (int j = 0; j < n; ++j)
    if (column + j < width) out.write(blockIdx.y, column + j, mine[j * kBlock]);
}

// Division of the columns among thread blocks. lanes: threads of a block side by side (blockDim.x), as few as the
// columns need and at most `most`.
struct ColumnSplit {
  int lanes;
  std::int64_t slabs;  // number of thread blocks across the columns
};
ColumnSplit cut_columns(std::int64_t threads, int most) {
  int lanes = 1;
  while (lanes < threads && lanes < most) lanes *= 2;
  return {lanes, divide_up(threads, lanes)};
}

template <class T, int n>
void run_stage(const T* x, std::int64_t rows, std::int64_t width, std::int64_t stride, const ColumnSplit& cut,
               std::int64_t rows_per_part, std::int64_t parts, const Sums& out, const ExecContext& ctx) {
  const auto lanes = static_cast<unsigned>(cut.lanes);
  launch(ctx, {grid_of(cut.slabs, parts), {lanes, kBlock / lanes}}, sum_columns<T, n>, x, rows, width, stride,
         static_cast<int>(rows_per_part), out);
}

template <class T, int n>
void run_width(const ColumnSum& args, const Sums& out, const ExecContext& ctx) {
  constexpr std::int64_t max_blocks = 2048;
  const T* x = device_data<T>(args.x);
  const std::int64_t rows = args.x.dim(0), width = args.x.dim(1), stride = args.x.stride(0);
  const ColumnSplit cut = cut_columns(divide_up(width, n), kWarp);
  // Splits the rows into enough parts to fill any device, but leaves each thread at least one full round of loads.
  const std::int64_t round = std::int64_t{kRowsAtOnce} * (kBlock / cut.lanes);
  const std::int64_t most = std::clamp(divide_up(rows, round), std::int64_t{1}, kMaxGridY);
  const std::int64_t wanted = std::clamp(max_blocks / cut.slabs, std::int64_t{1}, most);
  const std::int64_t rows_per_part = std::max<std::int64_t>(1, divide_up(rows, wanted));
  const std::int64_t parts = std::max<std::int64_t>(1, divide_up(rows, rows_per_part));
  if (parts == 1) return run_stage<T, n>(x, rows, width, stride, cut, rows_per_part, 1, out, ctx);
  const Tensor partial = ctx.empty({parts, width});
  float* sums = partial.data<float>();
  run_stage<T, n>(x, rows, width, stride, cut, rows_per_part, parts, Sums{sums, nullptr, width, 0}, ctx);
  // The second stage is small. It has few columns per thread block, so that it still occupies many thread blocks.
  run_stage<float, 1>(sums, parts, width, width, cut_columns(width, 8), parts, 1, out, ctx);
}

void run_column_sum(const ColumnSum& args, const ExecContext& ctx) {
  const Tensor &x = args.x, &out = args.out;
  RING_CHECK(x.defined() && out.defined() && x.shape().size() == 2 && out.numel() == x.dim(1) && out.is_contiguous() &&
                 (x.dim(1) <= 1 || x.stride(1) == 1),
             "column_sum of ", describe(x), " into ", describe(out), ": shapes do not fit");
  RING_CHECK(x.dim(0) <= INT32_MAX, "column_sum of ", describe(x), ": too many rows");
  if (x.dim(1) == 0) return;
  Sums sums{nullptr, nullptr, 0, args.beta};
  if (out.dtype() == DType::bf16)
    sums.b16 = device_data<__nv_bfloat16>(out);
  else
    sums.f32 = device_data<float>(out);
  visit_float("column_sum", x.dtype(), [&]<class T>() {
    constexpr int n = kPack<T>;
    const bool packs = x.dim(1) % n == 0 && x.stride(0) % n == 0 && is_aligned(x.raw());
    if (packs)
      run_width<T, n>(args, sums, ctx);
    else
      run_width<T, 1>(args, sums, ctx);
  });
}

const bool added_column_sum = column_sum_kernel.add(Backend::cuda, {"two_stage", run_column_sum});

}  // namespace
}  // namespace ring::cuda
