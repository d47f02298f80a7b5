#include "kernels/cuda/quantize_fp8.cuh"

namespace ring::cuda {
namespace {

// A tile with one scale.
template <class T>
__global__ void __launch_bounds__(kBlock) quantize_squares(const Elements<T> source, const QuantizeParams p) {
  __shared__ TileMemory m;
  ThreadTile<T> t(p);
  t.load(source);
  const ThreadMax max(t);
  t.keep_packed();
  float largest = 0;
#pragma unroll
  for (int c = 0; c < kEach; ++c) largest = fmaxf(largest, max.column(c));
  largest = max_over_lanes(largest, kWarp);
  if (threadIdx.x % kWarp == 0) m.max[threadIdx.x / kWarp][0] = largest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, m.max[w][0]);
  const Fp8Scale s = fp8_scale(largest);
  if (p.out.values) {
#pragma unroll
    for (int r = 0; r < kEach; ++r) t.write_row(r, s.factor);
    if (threadIdx.x == 0) p.out.scales[t.block_row * p.out.scale_stride + t.block_column] = s.scale;
  }
  if (!p.transposed.values) return;
  if (threadIdx.x == 0) p.transposed.scales[t.block_column * p.transposed.scale_stride + t.block_row] = s.scale;
  if (threadIdx.x < kSide) m.factors[threadIdx.x] = s.factor;
  __syncthreads();
  t.stage_columns(m);
  __syncthreads();
  write_columns(p, m, t.block_row * kSide, t.block_column * kSide);
}

void run_quantize(const QuantizeFp8& q, const ExecContext& ctx) {
  check(q);
  const bool squares = (q.out.defined() ? q.out : q.transposed).blocks == Fp8Blocks::squares;
  visit_float("quantize_fp8", q.x.dtype(), [&]<class T>() {
    const bool packed = made_of_packs(device_rows<T>("quantize_fp8", "x", q.x));
    launch_tiles(ctx, squares ? quantize_squares<T> : quantize_rows<Elements<T>>,
                 Elements<T>{device_data<T>(q.x), q.x.stride(0)},
                 quantize_params(q.out, q.transposed, q.x.dim(0), q.x.dim(1), packed));
  });
}

const bool added = quantize_fp8_kernel.add(Backend::cuda, {"tiles", run_quantize});

}  // namespace
}  // namespace ring::cuda
