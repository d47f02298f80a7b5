#include "kernels/cuda/quantize_fp8.cuh"

namespace ring::cuda {
namespace {

// Quantizes with one scale per tile.
template <class T>
__global__ void __launch_bounds__(kBlock) quantize_squares(const Elements<T> source, const QuantizeParams p) {
  __shared__ TransposedTile staged;
  const ThreadTile<T> t(source, p);
  Magnitudes<T> word;
#pragma unroll
  for (const Pack<T, kEach>& row : t.rows)
#pragma unroll
    for (const std::uint32_t bits : row.bits) word.add(bits);
  const Fp8Scale s = fp8_scale(max_of_block(word));
  if (threadIdx.x == 0) {
    if (p.out.values) p.out.scales[t.block_row * p.out.scale_stride + t.block_column] = s.scale;
    if (p.transposed.values) p.transposed.scales[t.block_column * p.transposed.scale_stride + t.block_row] = s.scale;
  }
  ThreadCodes codes;
#pragma unroll
  for (int r = 0; r < kEach; ++r) codes.rows[r] = pack_codes(unpack(t.rows[r]), s.factor);
  write_tile(p, t, codes, t.block_column * kSide, p.columns, staged);
}

void run_quantize(const QuantizeFp8& q, const ExecContext& ctx) {
  check(q);
  const bool squares = (q.out.defined() ? q.out : q.transposed).blocks == Fp8Blocks::squares;
  visit_float("quantize_fp8", q.x.dtype(), [&]<class T>() {
    const bool packed = made_of_packs(device_rows<T>("quantize_fp8", "x", q.x));
    const Elements<T> source{device_data<T>(q.x), q.x.stride(0)};
    const QuantizeParams p = quantize_params(q, q.x.dim(0), q.x.dim(1), packed);
    if (squares) return launch_tiles(ctx, quantize_squares<T>, source, p);
    launch_quantize(ctx, source, p);
  });
}

const bool added_quantize_fp8 = quantize_fp8_kernel.add(Backend::cuda, {"tiles", run_quantize});

}  // namespace
}  // namespace ring::cuda
