#include "kernels/cuda/quantize_fp8.cuh"

namespace ring::cuda {
namespace {

// Returns the operand of a linear layer whose blocks these outputs have.
Operand operand_of(const QuantizeFp8& q) {
  if (q.out.defined() && q.out.blocks == Fp8Blocks::squares) return Operand::weight;
  return q.transposed.defined() && q.transposed.blocks == Fp8Blocks::squares ? Operand::input : Operand::gradient;
}

void run_quantize(const QuantizeFp8& q, const ExecContext& ctx) {
  check(q);
  visit_float("quantize_fp8", q.x.dtype(), [&]<class T>() {
    const bool packed = made_of_packs(device_rows<T>("quantize_fp8", "x", q.x));
    const Elements<T> source{device_data<T>(q.x), q.x.stride(0)};
    const QuantizeParams p = quantize_params(q, q.x.dim(0), q.x.dim(1), packed);
    switch (operand_of(q)) {
      case Operand::input: return launch_quantize<Operand::input>(ctx, source, p);
      case Operand::gradient: return launch_quantize<Operand::gradient>(ctx, source, p);
      case Operand::weight: return launch_quantize<Operand::weight>(ctx, source, p);
    }
  });
}

// Values and scales of an FP8 matrix to transpose.
struct Codes {
  Fp8Rows x;
  bool squares;  // false: one scale per tensor; read only by transpose_codes

  // Returns 8 codes of a row; codes outside the matrix are 0.
  __device__ uint2 load(const QuantizeParams& p, std::int64_t row, std::int64_t column) const {
    if (row >= p.rows) return {};
    const std::uint8_t* from = x.values + row * x.value_stride + column;
    if (column + kEach <= p.columns) return *reinterpret_cast<const uint2*>(from);
    uint2 codes = {};
    for (int c = 0; c < kEach; ++c)
      if (column + c < p.columns) (c < 4 ? codes.x : codes.y) |= static_cast<unsigned>(from[c]) << 8 * (c % 4);
    return codes;
  }
};

__global__ void __launch_bounds__(kBlock) transpose_codes(const Codes source, const QuantizeParams p) {
  __shared__ TransposedTile staged;
  const Place at(p);
  ThreadCodes codes;
#pragma unroll
  for (int r = 0; r < kEach; ++r) codes.rows[r] = source.load(p, at.row() + r, at.column());
  if (threadIdx.x == 0 && (source.squares || (at.block_row == 0 && at.block_column == 0)))
    p.transposed.scales[at.block_column * p.transposed.scale_stride + at.block_row] =
        source.x.scales[at.block_row * source.x.scale_stride + at.block_column];
  write_transposed(p, at, codes, at.block_column * kSide, p.columns, staged);
}

void run_transpose_fp8(const TransposeFp8& t, const ExecContext& ctx) {
  check(t);
  const std::int64_t rows = t.x.values.dim(0), columns = t.x.values.dim(1);
  const QuantizeParams p{.rows = rows,
                         .columns = columns,
                         .tiles_across = static_cast<unsigned>(fp8_blocks(columns)),
                         .packed = true,
                         .out = {},
                         .transposed = Fp8Rows(t.out),
                         .max = nullptr,
                         .given = false};
  launch_tiles(ctx, transpose_codes, Codes{Fp8Rows(t.x), t.x.blocks == Fp8Blocks::squares}, p);
}

// A matrix in FP8 with blocks of rows, and the matrix that its decoded elements are written to.
template <class T>
struct CodesAndElements {
  Codes codes;
  T* out;
  std::int64_t stride;
};

template <class T>
__global__ void __launch_bounds__(kBlock) dequantize_codes(const CodesAndElements<T> a, const QuantizeParams p) {
  const Place at(p);
  const std::int64_t column = at.column();
  if (column >= p.columns) return;
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    const std::int64_t row = at.row() + r;
    if (row >= p.rows) return;
    const float scale = a.codes.x.scales[at.block_column * a.codes.x.scale_stride + row];
    const Floats<kEach> x = unpack_codes(a.codes.load(p, row, column), scale);
    T* to = a.out + row * a.stride + column;
    if (p.packed) {
      store_pack(to, pack<T>(x));
      continue;
    }
#pragma unroll
    for (int c = 0; c < kEach; ++c)
      if (column + c < p.columns) to[c] = from_float<T>(x.v[c]);
  }
}

void run_dequantize_fp8(const DequantizeFp8& d, const ExecContext& ctx) {
  check(d);
  visit_float("dequantize_fp8", d.out.dtype(), [&]<class T>() {
    QuantizeParams p{};
    p.rows = d.out.dim(0), p.columns = d.out.dim(1);
    p.tiles_across = static_cast<unsigned>(fp8_blocks(p.columns));
    p.packed = made_of_packs(device_rows<T>("dequantize_fp8", "out", d.out)) && p.columns % kEach == 0;
    launch_tiles(ctx, dequantize_codes<T>,
                 CodesAndElements<T>{{Fp8Rows(d.x), false}, device_data<T>(d.out), d.out.stride(0)}, p);
  });
}

const bool added_transpose_fp8 = transpose_fp8_kernel.add(Backend::cuda, {"tiles", run_transpose_fp8});
const bool added_dequantize_fp8 = dequantize_fp8_kernel.add(Backend::cuda, {"tiles", run_dequantize_fp8});
const bool added_quantize_fp8 = quantize_fp8_kernel.add(Backend::cuda, {"tiles", run_quantize});

}  // namespace
}  // namespace ring::cuda
