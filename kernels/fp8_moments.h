#pragma once
// Moments of optimizers in 8 bits (Dettmers et al. 2022, "8-bit optimizers via block-wise quantization"): a code for
// each element, and a power-of-two scale for each block of 16 elements.
//
// The codes are floats with 4 exponent bits. First moments have a sign and 3 mantissa bits (e4m3). Second moments are
// never negative, so their sign bit becomes a fourth mantissa bit (e4m4): rounding errors of v accumulate over
// 1 / (1 - beta2) steps. A block's scale is the smallest one at which its largest magnitude does not saturate.
//
// * Range: a block's largest v is 245,760 to 491,520 times its smallest nonzero code, so sqrt(v) covers a factor of at
//   least 495. A smaller v is rounded up to that code, never to 0: with v = 0, updates would be m / eps.
// * Rounding: updates round stochastically, with the random bits of bf16 moments (kernels/optimizer.h), so that the
//   expected value is exact, except for v below that range. Rounding to nearest would lose changes by (1 - beta2) v.
// * Quantizing dequantized values again does not change them, whatever the random bits.
// * Infinity, NaN and magnitudes from 2^127 on, which could round to infinity, are stored as NaN. A value that was
//   rounded up to 2^127 is stored as NaN at the next update.

#include <bit>
#include <cstdint>
#include <string_view>

#include "core/host_device.h"
#include "core/tensor.h"

namespace ring {

// Divides kParamAlign, the alignment of parameters, so that blocks do not depend on how parameters are sharded.
inline constexpr std::int64_t kMomentBlock = 16;
constexpr std::int64_t moment_blocks(std::int64_t n) { return (n + kMomentBlock - 1) / kMomentBlock; }

enum class Fp8Moment : std::uint8_t { e4m3, e4m4 };  // e4m3: signed; e4m4: never negative
constexpr std::string_view to_string(Fp8Moment form) { return form == Fp8Moment::e4m3 ? "e4m3" : "e4m4"; }

// Throws Error, naming `op`, if `scales` does not fit `moments`: u8 moments need one u8 scale per block,
// other types must not have scales.
void check_fp8_moments(std::string_view op, const Tensor& moments, const Tensor& scales);

inline constexpr std::uint32_t kMomentLimit = 0x7f000000;  // bits of 2^127

// The random bits for which to_fp8_moment() rounds to nearest.
inline constexpr std::uint32_t kToNearest = 0x8000;

template <Fp8Moment form>
struct Fp8MomentFormat {
  static constexpr std::uint32_t kMantissa = form == Fp8Moment::e4m3 ? 3 : 4;        // number of mantissa bits
  static constexpr std::uint32_t kNaN = form == Fp8Moment::e4m3 ? 0x7f : 0xff;       // e4m3 may also have the sign bit
  static constexpr std::uint32_t kMaxFraction = form == Fp8Moment::e4m3 ? 6u : 14u;  // mantissa of the largest code
  static constexpr std::uint32_t kMaxExponent = 14;  // the largest code is (1 + fraction) 2^(14 + kMantissa) units
};

// Returns the bits of |x| for the maximum of a block; 0 if x is stored as NaN.
RING_HOST_DEVICE constexpr std::uint32_t finite_magnitude(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7fffffffu;
  return bits < kMomentLimit ? bits : 0;
}

// Returns the scale of a block, given the maximum of finite_magnitude(). 2^(scale - 127) is the block's unit, its
// smallest nonzero code. scale >= 1, so that codes stand for normal f32 and bf16 numbers.
template <Fp8Moment form>
RING_HOST_DEVICE constexpr std::uint32_t fp8_moment_scale(std::uint32_t max) {
  using F = Fp8MomentFormat<form>;
  const std::uint32_t above = (max & 0x7fffffu) > F::kMaxFraction << (23 - F::kMantissa) ? 1 : 0;
  const std::uint32_t exponent = (max >> 23) + above, span = F::kMaxExponent + F::kMantissa;
  return exponent > span ? exponent - span : 1;
}

// Returns the code of x. random: 16 random bits, or kToNearest. |x| must not exceed the maximum that gave the scale.
template <Fp8Moment form>
RING_HOST_DEVICE constexpr std::uint32_t to_fp8_moment(float x, std::uint32_t scale, std::uint32_t random) {
  using F = Fp8MomentFormat<form>;
  constexpr std::uint32_t cut = 23 - F::kMantissa;  // bits of f32's mantissa that are rounded away
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const bool negative = bits > 0x80000000u;  // false for -0
  const std::uint32_t sign = form == Fp8Moment::e4m3 && negative ? 0x80u : 0;
  if (magnitude >= kMomentLimit || (form == Fp8Moment::e4m4 && negative)) return F::kNaN | sign;
  // Units of the block: codes are whole numbers up to 2^kMantissa, then floats with kMantissa mantissa bits.
  const float units = std::bit_cast<float>(magnitude) * std::bit_cast<float>((254 - scale) << 23);
  if (units >= static_cast<float>(1u << F::kMantissa)) {
    const std::uint32_t rounded = (std::bit_cast<std::uint32_t>(units) + (random << (cut - 16))) >> cut;
    return sign | (rounded - ((126 + F::kMantissa) << F::kMantissa));  // changes the exponent bias
  }
  const auto code = static_cast<std::uint32_t>(units + static_cast<float>(random) * 0x1p-16f);
  return sign | (form == Fp8Moment::e4m4 && code == 0 && magnitude ? 1 : code);
}

template <Fp8Moment form>
RING_HOST_DEVICE constexpr float from_fp8_moment(std::uint32_t code, std::uint32_t scale) {
  using F = Fp8MomentFormat<form>;
  const std::uint32_t sign = form == Fp8Moment::e4m3 ? (code & 0x80u) << 24 : 0;
  const std::uint32_t magnitude = form == Fp8Moment::e4m3 ? code & 0x7fu : code;
  if (magnitude == F::kNaN) return std::bit_cast<float>(sign | 0x7fc00000u);
  std::uint32_t mantissa = magnitude & ((1u << F::kMantissa) - 1), exponent = magnitude >> F::kMantissa;
  if (exponent > 0) mantissa += 1u << F::kMantissa, exponent -= 1;
  const float value = static_cast<float>(mantissa) * std::bit_cast<float>((scale + exponent) << 23);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

// Quantizes the n <= kMomentBlock elements of one block. random(i): 16 random bits of element i, or kToNearest.
template <Fp8Moment form, class Random>
void write_moment_block(const float* values, std::int64_t n, std::uint8_t* codes, std::uint8_t* scale,
                        const Random& random) {
  std::uint32_t max = 0;
  for (std::int64_t i = 0; i < n; ++i)
    if (const std::uint32_t magnitude = finite_magnitude(values[i]); magnitude > max) max = magnitude;
  const std::uint32_t s = fp8_moment_scale<form>(max);
  *scale = static_cast<std::uint8_t>(s);
  for (std::int64_t i = 0; i < n; ++i)
    codes[i] = static_cast<std::uint8_t>(to_fp8_moment<form>(values[i], s, random(i)));
}

template <Fp8Moment form>
void read_moment_block(const std::uint8_t* codes, std::uint8_t scale, std::int64_t n, float* values) {
  for (std::int64_t i = 0; i < n; ++i) values[i] = from_fp8_moment<form>(codes[i], scale);
}

}  // namespace ring
