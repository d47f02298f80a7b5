#pragma once
// Compressed encodings of gradients and weight differences that ranks send, with error feedback (Seide et al. 2014,
// "1-bit SGD"; Karimireddy et al. 2019): the sender keeps the encoding error as a residual, and adds it to its next
// gradient. int4 and int2 are supported on CPUs only.
//
//   code  bytes of n elements            value that is sent for x
//   f32   4 n                            x
//   bf16  2 n                            x rounded to bf16; finite numbers saturate
//   int8  n + n / 128                    round(x / s) s, s = 2^k with max |x| / s in (63.5, 127] for 128 elements
//   fp8   n + n / 128                    e4m3(x / s) s, s = 2^k with max |x| / s in (224, 448] for 128 elements
//   int4  n / 2 + n / 128                as int8, with max |x| / s in (3.5, 7]; n rounded up to a multiple of 128
//   int2  n / 4 + n / 128                as int8, clipped to [-s, s]; n rounded up to a multiple of 128
//   topk  4 top n / 1024                 x rounded to bf16 for the `top` largest |x| of 1024 elements, 0 for the others
//
// Each size is rounded up to a multiple of 16 bytes. Scales are at least 2^-126.
//
// int2: s is the power of two nearest to 1.53 times the mean |x| of the 128 elements. This is the best step of a
// three-level quantizer for normally distributed numbers (1.224 standard deviations, Max 1960). With a scale from the
// maximum, most elements would become 0. Error feedback sends the clipped remainder in later messages.
//
// The residual is exact in f32: the sent value plus the residual is x, bit for bit except for the sign of a zero
// (docs/adr/0051-compressed-gradients.md has the proof). If x is not finite, the sent value is not finite: of x alone
// (f32, bf16, topk), or of all 128 elements that share a scale (others). The residual of these elements is 0.

#include <bit>
#include <cstdint>

#include "core/host_device.h"
#include "kernels/kernel.h"

namespace ring {

enum class GradientCode : std::uint8_t { f32, bf16, int8, int4, int2, fp8, topk };

inline constexpr std::int64_t kCodeBlock = 128;  // elements that share a scale
inline constexpr std::int64_t kTopBlock = 1024;  // elements among which the largest are selected

struct GradientCoding {
  GradientCode code = GradientCode::f32;
  std::int64_t top = 0;  // topk: elements of each kTopBlock that are sent, in [1, kTopBlock]
};
// Returns the size of a message of n elements, a multiple of 16.
std::int64_t message_bytes(const GradientCoding&, std::int64_t n);
constexpr std::int64_t code_blocks(std::int64_t n) { return (n + kCodeBlock - 1) / kCodeBlock; }
// Returns the offset of the codes, which follow the scales.
constexpr std::int64_t code_offset(std::int64_t n) { return (code_blocks(n) + 15) / 16 * 16; }

// Encodes x = gradient + residual, added in f32.
//   gradient  [n] f32 or bf16
//   residual  [n] f32; undefined means 0
//   left      [n] f32: the new residual, x - sent. May be the tensor `residual`; undefined if it is not wanted
//   message   u8 [message_bytes(coding, n)], 16-byte aligned
// All tensors are contiguous. topk: of equal magnitudes, the one with the smaller index is selected.
struct EncodeGradient {
  Tensor gradient, residual, left, message;
  GradientCoding coding;
};
inline Cost cost(const EncodeGradient& a) { return cost_of(a.gradient, {a.gradient, a.residual, a.left, a.message}); }
inline constinit Kernel<EncodeGradient> encode_gradient_kernel{"encode_gradient"};

// sum = sent values, or sum += sent values if `add`. sum: f32 [n], contiguous; message: as EncodeGradient wrote it.
struct DecodeGradient {
  Tensor message, sum;
  GradientCoding coding;
  bool add = false;
};
inline Cost cost(const DecodeGradient& a) { return cost_of(a.sum, {a.message, a.sum, a.add ? a.sum : Tensor{}}); }
inline constinit Kernel<DecodeGradient> decode_gradient_kernel{"decode_gradient"};

// Ends a step: kept = pending if state.accepted, else pending = kept. Both f32, contiguous, of one length.
struct SettleResiduals {
  Tensor kept, pending, state;
};
inline Cost cost(const SettleResiduals& a) { return cost_of(a.kept, {a.kept, a.pending}); }
inline constinit Kernel<SettleResiduals> settle_residuals_kernel{"settle_residuals"};

void check(const EncodeGradient&);  // throw Error if types, sizes or the coding do not fit
void check(const DecodeGradient&);

inline constexpr std::uint32_t kPoisonedScale = 255;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000, kNaNBits = 0x7fc00000;

RING_HOST_DEVICE constexpr std::uint32_t magnitude_bits(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu;
}

// Returns the biased exponent of a block's scale; kPoisonedScale if the block has a non-finite number. max: the bits of
// the block's largest magnitude. The upper limits keep every sent value finite. bits: width of a code, 8 or 4.
RING_HOST_DEVICE constexpr std::uint32_t integer_scale(std::uint32_t max, std::uint32_t bits) {
  if (max >= kInfinityBits) return kPoisonedScale;
  // The largest code is 2^(bits-1) - 1 = (2 - 2^(2-bits)) 2^(bits-2).
  const std::uint32_t largest_mantissa = 0x800000u - (0x800000u >> (bits - 2));
  const std::uint32_t exponent = (max >> 23) + ((max & 0x7fffffu) > largest_mantissa ? 1 : 0);
  const std::uint32_t biased = exponent > bits - 1 ? exponent - (bits - 2) : 1;
  return biased < 256 - bits ? biased : 256 - bits;
}
constexpr std::uint32_t int2_scale(std::uint32_t max, float mean) {
  if (max >= kInfinityBits) return kPoisonedScale;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(2.1637468f * mean) >> 23;  // 1.53 sqrt(2)
  return exponent < 1 ? 1 : exponent < 253 ? exponent : 253;
}
RING_HOST_DEVICE constexpr std::uint32_t e4m3_scale(std::uint32_t max) {
  if (max >= kInfinityBits) return kPoisonedScale;
  const std::uint32_t exponent = (max >> 23) + ((max & 0x7fffffu) > 0x600000u ? 1 : 0);  // 448 = 1.75 x 2^8
  const std::uint32_t biased = exponent > 9 ? exponent - 8 : 1;
  return biased < 246 ? biased : 246;
}
RING_HOST_DEVICE constexpr float scale_of_bits(std::uint32_t biased) { return std::bit_cast<float>(biased << 23); }
RING_HOST_DEVICE constexpr float factor_of_bits(std::uint32_t biased) {
  return std::bit_cast<float>((254 - biased) << 23);
}

// Rounds to nearest even and saturates at the largest code of `bits` bits: 127, 7 or 1. Requires |units| < 2^22.
RING_HOST_DEVICE constexpr std::int32_t rounded_integer(float units, int bits) {
  const std::int32_t r = std::bit_cast<std::int32_t>(units + 12582912.0f) - 0x4b400000;  // 1.5 x 2^23
  const std::int32_t limit = (1 << (bits - 1)) - 1;
  return r > limit ? limit : r < -limit ? -limit : r;
}

// Returns the bits of bf16 nearest to x, ties to even. Finite numbers saturate at the largest bf16, so that a residual
// stays finite; NaN stays NaN.
RING_HOST_DEVICE constexpr std::uint32_t sent_bf16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x), magnitude = bits & 0x7fffffffu,
                      sign = bits >> 16 & 0x8000u;
  if (magnitude > kInfinityBits) return sign | 0x7fc0u;
  if (magnitude == kInfinityBits) return sign | 0x7f80u;
  const std::uint32_t rounded = (magnitude + 0x7fffu + (magnitude >> 16 & 1u)) >> 16;
  return sign | (rounded < 0x7f7fu ? rounded : 0x7f7fu);
}
RING_HOST_DEVICE constexpr float bf16_value(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }

// A topk entry: [31:16] index in the block | [15:0] bf16 value. Blocks with fewer than `top` elements have unused ones.
inline constexpr std::uint32_t kUnusedEntry = 0xffff0000;
RING_HOST_DEVICE constexpr std::uint32_t top_entry(std::uint32_t index, float x) { return index << 16 | sent_bf16(x); }

// Returns the residual x - sent for codes without a scale (bf16, topk); 0 if x is not finite.
RING_HOST_DEVICE constexpr float left_of(float x, float sent) {
  return magnitude_bits(x) < kInfinityBits ? x - sent : 0.0f;
}

}  // namespace ring
