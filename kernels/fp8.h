#pragma once
// FP8 for GEMMs: e4m3 values (4 exponent bits, 3 mantissa bits) with power-of-two scales, in two forms.
//
// Blockwise: one scale per 1 x 128 or per 128 x 128 elements (DeepSeek-V3, arXiv 2412.19437, section 3.3); QuantizeFp8
// says which. Each block is quantized independently, so the bytes depend neither on the micro-batch nor on how tokens
// are sharded in multiples of 128.
//
// Tensorwise: one scale per tensor, from its current largest magnitude. If a tensor is split, its parts share the
// maximum of all parts. A power-of-two scale costs e4m3's normal numbers no precision, since their relative error is
// the same at any scale, and it costs at most 1 of the 18 binades from the smallest subnormal number to 448.
//
// Neither form stores anything in checkpoints. Gradients are also e4m3: because they are scaled, they do not need the
// larger exponent range of e5m2, whose 2-bit mantissa would double the error of each element.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/host_device.h"
#include "kernels/kernel.h"

namespace ring {

inline constexpr std::int64_t kFp8Block = 128;
inline constexpr float kE4m3Max = 448;          // 2^8 x 1.75
inline constexpr std::uint8_t kE4m3NaN = 0x7f;  // e4m3 has no infinities
constexpr std::int64_t fp8_blocks(std::int64_t n) { return (n + kFp8Block - 1) / kFp8Block; }

// Rounds to nearest even. Finite magnitudes above 448 become 448; NaN and infinity become NaN.
constexpr std::uint8_t to_e4m3(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return kE4m3NaN;
  std::uint32_t code = 0;
  if (magnitude < 0x3c800000u) {  // subnormal, below 2^-6: adding 2^14 rounds to multiples of 2^-9
    const float sum = std::bit_cast<float>(magnitude) + 16384.0f;
    code = std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(16384.0f);
  } else {  // keeps 3 of 23 mantissa bits, and changes the exponent bias from 127 to 7
    code = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
  }
  return static_cast<std::uint8_t>(sign | std::min(code, 0x7eu));
}
constexpr float from_e4m3(std::uint8_t code) {
  const std::uint32_t sign = (code & 0x80u) << 24, exponent = code >> 3 & 15u, mantissa = code & 7u;
  if ((code & 0x7fu) == kE4m3NaN) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * static_cast<float>(mantissa) / 512.0f;
  return std::bit_cast<float>(sign | (exponent + 120u) << 23 | mantissa << 20);
}

// Scale of a block. Elements are multiplied by `factor` (1 / scale, or 0 if the maximum is infinite) and then rounded.
struct Fp8Scale {
  float scale, factor;
};
// Returns the scale of a block whose largest magnitude, ignoring NaN, is `max`: the smallest power of two
// with max / scale <= 448, so that no finite element saturates, but at least 2^-126. A block of zeros has
// scale 1. If max is infinite, the factor is 0, which turns infinities into NaN. A NaN in a block
// propagates to every result of its row.
RING_HOST_DEVICE constexpr Fp8Scale fp8_scale(float max) {
  const auto bits = std::bit_cast<std::uint32_t>(max);
  if (bits == 0) return {1, 1};
  if (bits >= 0x7f800000u) return {1, 0};
  const std::uint32_t exponent =
      (bits >> 23) + ((bits & 0x7fffffu) > 0x600000u ? 1 : 0);  // ceil(log2(max / 1.75)) + 127
  const std::uint32_t biased = exponent > 8 ? exponent - 8 : 1;
  return {std::bit_cast<float>(biased << 23), std::bit_cast<float>((254 - biased) << 23)};
}

// Returns the scale of a whole tensor, given its maximum. If the maximum is infinite or NaN, every element becomes NaN:
// finite elements have no useful scale, and other parts of a split tensor may not contain the infinity.
RING_HOST_DEVICE constexpr Fp8Scale fp8_tensor_scale(float max) {
  const Fp8Scale s = fp8_scale(max);
  return {s.scale, s.factor == 0 ? std::bit_cast<float>(0x7fc00000u) : s.factor};
}

enum class Fp8Blocks : std::uint8_t {
  rows,     // one scale per 1 x 128 elements
  squares,  // one scale per 128 x 128 elements
  tensor,   // one scale for the whole tensor
};

// A matrix [R,K] in FP8. An element equals its code's value times the scale of its block. The rows of both tensors
// start at multiples of 16 bytes, as TMA requires.
struct Fp8Matrix {
  Tensor values;  // u8 [R,K]: e4m3
  Tensor scales;  // f32; rows: [K / 128, R]; squares: [R / 128, K / 128], quotients rounded up; tensor: [1, 1]
  Fp8Blocks blocks = Fp8Blocks::rows;

  bool defined() const { return values.defined(); }
};
// Throws Error, naming `op` and `name`, unless `m` is a matrix [rows,columns] with the alignment above.
void check_fp8_matrix(std::string_view op, std::string_view name, const Fp8Matrix& m, std::int64_t rows,
                      std::int64_t columns);
// Returns a matrix of unspecified contents.
Fp8Matrix empty_fp8(std::int64_t rows, std::int64_t columns, Fp8Blocks, const ExecContext&, Lifetime = Lifetime::step);

// The largest magnitude of a tensor, ignoring NaN. Tensorwise ops require it; blockwise ops must not have it. Unless
// `given`, an op first raises `value` to the largest magnitude of its result. An op without outputs does only this.
//
// A split tensor thus takes two calls per part: first one without outputs; then, once `value` holds the maximum of all
// parts, one with outputs and `given`. The caller must set `value` to 0 before the first call.
struct Fp8Max {
  Tensor value;  // f32 [1]
  bool given = false;
};

// Quantizes x, f32 or bf16 [N,C] with unit last stride.
//   out         [N,C]; may be undefined
//   transposed  [C,N], the transpose; may be undefined. A block of rows in it is 128 rows of one column of x
// Blocks of (out, transposed) are (rows, squares) for a layer's input, (rows, rows) for a gradient, (squares,
// squares) for a weight, or (tensor, tensor). Blockwise quantization takes one pass over x. Tensorwise takes two
// passes, or one if the maximum is given. If the given maximum is too small, larger finite magnitudes become 448 *
// scale, and infinite ones NaN.
struct QuantizeFp8 {
  Tensor x;
  Fp8Matrix out, transposed;
  Fp8Max max = {};
};
void check(const QuantizeFp8&);  // throws Error if shapes, types, blocks or the maximum do not fit
// Returns whether an op with these outputs and this maximum is tensorwise.
inline bool is_tensorwise(const Fp8Matrix& out, const Fp8Matrix& transposed, const Fp8Max& max) {
  return out.defined()          ? out.blocks == Fp8Blocks::tensor
         : transposed.defined() ? transposed.blocks == Fp8Blocks::tensor
                                : max.value.defined();
}
inline Cost cost(const QuantizeFp8& q) {
  return cost_of(q.x, {q.x, q.out.values, q.out.scales, q.transposed.values, q.transposed.scales});
}
inline constinit Kernel<QuantizeFp8> quantize_fp8_kernel{"quantize_fp8"};

// Writes the transpose of x [R,K] to out [K,R], with the same codes and scales. Blocks are squares or tensor.
struct TransposeFp8 {
  Fp8Matrix x, out;
};
void check(const TransposeFp8&);  // throws Error if shapes, types or blocks do not fit
inline Cost cost(const TransposeFp8& t) {
  return cost_of(t.x.values, {t.x.values, t.x.scales, t.out.values, t.out.scales});
}
inline constinit Kernel<TransposeFp8> transpose_fp8_kernel{"transpose_fp8"};

// Writes the elements of x [R,K], whose blocks are rows, to `out`, rounded to its type: f32 or bf16, unit last stride.
// bf16 is exact from 2^-129 on, except that magnitudes from 1.9375 * 2^127 were rounded to 2^128: infinity in bf16.
struct DequantizeFp8 {
  Fp8Matrix x;
  Tensor out;
};
void check(const DequantizeFp8&);  // throws Error if shapes, types or blocks do not fit
inline Cost cost(const DequantizeFp8& d) { return cost_of(d.out, {d.x.values, d.x.scales, d.out}); }
inline constinit Kernel<DequantizeFp8> dequantize_fp8_kernel{"dequantize_fp8"};

// c [M,N] = a b^T + bias + residual, or c += a b^T if `accumulate`, with a [M,K] and b [N,K]. FLOPs: 2 M N K. A linear
// layer has three such GEMMs:
//   y = x w^T
//   dx = dy w, with the transposed copy of w as b
//   dw += dy^T x, with the transposed copies of dy as a and of x as b
// The sum over each block of 128 along K is scaled and then accumulated in f32. The limited precision of the tensor
// cores' accumulators therefore only affects sums of 128 terms.
//
// Either the blocks of a are rows and those of b squares, or both are tensorwise. The rows of c start at multiples of
// 16 bytes. c is f32 or bf16; with `accumulate` it must be f32.
//
// Bias [N] and residual [M,N] are added in f32 before the result is rounded. Both have the type of c and may be
// undefined. They require that `accumulate` is false and, on GPUs, a bf16 c with an even N. The residual must not be c.
struct MatmulFp8 {
  Fp8Matrix a, b;
  Tensor c;
  bool accumulate = false;
  Tensor bias = {}, residual = {};
};
void check(const MatmulFp8&);  // throws Error if shapes, types or blocks do not fit
Cost cost(const MatmulFp8&);
// Returns the fastest kernel for the shape, measured at the first call.
const Kernel<MatmulFp8>::Candidate& choose_fastest(const Kernel<MatmulFp8>&, const MatmulFp8&, const ExecContext&);
inline constinit Kernel<MatmulFp8> matmul_fp8_kernel{"matmul_fp8", choose_fastest};

}  // namespace ring
