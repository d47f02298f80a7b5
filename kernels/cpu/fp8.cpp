// FP8 ops in plain loops: the reference for the GPU kernels.

#include "kernels/fp8.h"

#include <cmath>
#include <vector>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec.h"
#include "kernels/fp8_producers.h"

namespace ring::cpu {
namespace {

float load(const float* p) { return *p; }
float load(const bf16* p) { return to_float(*p); }
void store(float* p, float x) { *p = x; }
void store(bf16* p, float x) { *p = to_bf16(x); }

// A rectangle of the matrix x.
struct Block {
  std::int64_t row, rows, column, columns;
};

template <class T>
float max_of(const RowsOf<T>& x, const Block& b) {
  float max = 0;
  for (std::int64_t r = b.row; r < b.row + b.rows; ++r)
    for (std::int64_t c = b.column; c < b.column + b.columns; ++c) {
      const float magnitude = std::abs(load(x[r] + c));
      if (magnitude > max) max = magnitude;  // false for NaN
    }
  return max;
}

std::uint8_t scaled_e4m3(float x, float factor) {
  return to_e4m3(std::isfinite(x) ? std::clamp(x * factor, -kE4m3Max, kE4m3Max) : x * factor);
}

// Writes the scale, unless `scale` is null, and the block's element (r, c) to
// values[r * row_stride + c * column_stride].
template <class T>
void quantize(const RowsOf<T>& x, const Block& b, const Fp8Scale& s, std::uint8_t* values, std::int64_t row_stride,
              std::int64_t column_stride, float* scale) {
  if (scale) *scale = s.scale;
  for (std::int64_t r = b.row; r < b.row + b.rows; ++r)
    for (std::int64_t c = b.column; c < b.column + b.columns; ++c)
      values[r * row_stride + c * column_stride] = scaled_e4m3(load(x[r] + c), s.factor);
}

// Quantizes tile (i, j) of x, 128 x 128 elements, into m or, if `transposed`, its transpose.
template <class T>
void quantize_tile(const RowsOf<T>& x, const Fp8Matrix& m, const Fp8Max& max, std::int64_t i, std::int64_t j,
                   bool transposed) {
  if (!m.defined()) return;
  const Block tile{i * kFp8Block, std::min(kFp8Block, x.count - i * kFp8Block), j * kFp8Block,
                   std::min(kFp8Block, x.width - j * kFp8Block)};
  const auto write = [&](const Block& b, const Fp8Scale& s, float* scale) {
    const std::int64_t stride = m.values.stride(0);
    quantize(x, b, s, m.values.data<std::uint8_t>(), transposed ? 1 : stride, transposed ? stride : 1, scale);
  };
  float* scales = m.scales.data<float>();
  if (m.blocks == Fp8Blocks::tensor)  // only the first tile writes the scale
    return write(tile, fp8_tensor_scale(*max.value.data<float>()), i == 0 && j == 0 ? scales : nullptr);
  if (m.blocks == Fp8Blocks::squares)
    return write(tile, fp8_scale(max_of(x, tile)),
                 scales + (transposed ? j : i) * m.scales.stride(0) + (transposed ? i : j));
  scales += (transposed ? i : j) * m.scales.stride(0) + (transposed ? tile.column : tile.row);
  for (std::int64_t k = 0; k < (transposed ? tile.columns : tile.rows); ++k) {
    const Block line =
        transposed ? Block{tile.row, tile.rows, tile.column + k, 1} : Block{tile.row + k, 1, tile.column, tile.columns};
    write(line, fp8_scale(max_of(x, line)), scales + k);
  }
}

template <class T>
void quantize_all(const QuantizeFp8& q, const ExecContext& ctx) {
  const auto x = rows_of<T>("quantize_fp8", "x", q.x);
  if (q.max.value.defined() && !q.max.given) {
    float& max = *q.max.value.data<float>();
    max = std::max(max, max_of(x, {0, x.count, 0, x.width}));
  }
  if (!q.out.defined() && !q.transposed.defined()) return;
  const std::int64_t across = fp8_blocks(x.width), blocks = fp8_blocks(x.count) * across;
  ctx.stream.pool().parallel_for(blocks, row_grain(4 * kFp8Block * kFp8Block), [&](auto begin, auto end, int) {
    for (std::int64_t b = begin; b < end; ++b) {
      quantize_tile(x, q.out, q.max, b / across, b % across, false);
      quantize_tile(x, q.transposed, q.max, b / across, b % across, true);
    }
  });
}

void run_quantize(const QuantizeFp8& q, const ExecContext& ctx) {
  check(q);
  (q.x.dtype() == DType::bf16 ? quantize_all<bf16> : quantize_all<float>)(q, ctx);
}

void run_transpose_fp8(const TransposeFp8& t, const ExecContext& ctx) {
  check(t);
  const auto transpose = []<class T>(const Tensor& from, const Tensor& to, std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r)
      for (std::int64_t c = 0; c < from.dim(1); ++c)
        to.data<T>()[c * to.stride(0) + r] = from.data<T>()[r * from.stride(0) + c];
  };
  transpose.operator()<float>(t.x.scales, t.out.scales, 0, t.x.scales.dim(0));
  ctx.stream.pool().parallel_for(t.x.values.dim(0), row_grain(t.x.values.dim(1)), [&](auto begin, auto end, int) {
    transpose.operator()<std::uint8_t>(t.x.values, t.out.values, begin, end);
  });
}

template <class T>
void dequantize(const DequantizeFp8& d, const ExecContext& ctx) {
  const auto out = rows_of<T>("dequantize_fp8", "out", d.out);
  ctx.stream.pool().parallel_for(out.count, row_grain(out.width), [&](auto begin, auto end, int) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t c = 0; c < out.width; ++c)
        store(out[r] + c, from_e4m3(d.x.values.data<std::uint8_t>()[r * d.x.values.stride(0) + c]) *
                              d.x.scales.data<float>()[c / kFp8Block * d.x.scales.stride(0) + r]);
  });
}

void run_dequantize(const DequantizeFp8& d, const ExecContext& ctx) {
  check(d);
  (d.out.dtype() == DType::bf16 ? dequantize<bf16> : dequantize<float>)(d, ctx);
}

// Returns the unscaled values of a matrix, which f32 represents exactly.
std::vector<float> decode(const Tensor& values) {
  std::vector<float> out;
  out.reserve(static_cast<std::size_t>(values.numel()));
  for (std::int64_t r = 0; r < values.dim(0); ++r)
    for (std::int64_t k = 0; k < values.dim(1); ++k)
      out.push_back(from_e4m3(values.data<std::uint8_t>()[r * values.stride(0) + k]));
  return out;
}

float scale_at(const Fp8Matrix& m, std::int64_t row, std::int64_t block) {
  const float* scales = m.scales.data<float>();
  switch (m.blocks) {
    case Fp8Blocks::rows: return scales[block * m.scales.stride(0) + row];
    case Fp8Blocks::squares: return scales[row / kFp8Block * m.scales.stride(0) + block];
    default: return scales[0];
  }
}

template <class T>
void multiply(const MatmulFp8& p, const ExecContext& ctx) {
  const std::int64_t depth = p.a.values.dim(1), width = p.c.dim(1);
  const std::vector<float> a = decode(p.a.values), b = decode(p.b.values);
  const auto c = rows_of<T>("matmul_fp8", "c", p.c);
  const T* bias = p.bias.defined() ? p.bias.data<T>() : nullptr;
  const auto residual = p.residual.defined() ? rows_of<T>("matmul_fp8", "residual", p.residual) : RowsOf<T>{};
  ctx.stream.pool().parallel_for(c.count, row_grain(width * depth), [&](auto begin, auto end, int) {
    for (std::int64_t m = begin; m < end; ++m)
      for (std::int64_t n = 0; n < width; ++n) {
        float sum = 0;
        for (std::int64_t k = 0; k < depth; k += kFp8Block) {
          const float part = dot(a.data() + m * depth + k, b.data() + n * depth + k, std::min(kFp8Block, depth - k));
          sum += scale_at(p.a, m, k / kFp8Block) * scale_at(p.b, n, k / kFp8Block) * part;
        }
        if (bias) sum += load(bias + n);
        if (p.residual.defined()) sum += load(residual[m] + n);
        store(c[m] + n, p.accumulate ? load(c[m] + n) + sum : sum);
      }
  });
}

void run_matmul(const MatmulFp8& p, const ExecContext& ctx) {
  check(p);
  (p.c.dtype() == DType::bf16 ? multiply<bf16> : multiply<float>)(p, ctx);
}

const bool added[] = {
    quantize_fp8_kernel.add(Backend::cpu, {"loops", run_quantize}),
    transpose_fp8_kernel.add(Backend::cpu, {"loops", run_transpose_fp8}),
    dequantize_fp8_kernel.add(Backend::cpu, {"loops", run_dequantize}),
    matmul_fp8_kernel.add(Backend::cpu, {"loops", run_matmul}),
    rms_norm_fp8_kernel.add(Backend::cpu, {"separate", run_separately}),
    swiglu_fp8_kernel.add(Backend::cpu, {"separate", run_separately}),
    swiglu_backward_fp8_kernel.add(Backend::cpu, {"separate", run_separately}),
    rope_fp8_kernel.add(Backend::cpu, {"separate", run_separately}),
};

}  // namespace
}  // namespace ring::cpu
