#include "parallel/block_quantization.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace ring {
namespace {

constexpr std::uint8_t kNotFinite = 255;  // scale byte of a block with a non-finite number
constexpr int kExponentBias = 127;
// With these limits, codes times scales are normal f32 numbers.
constexpr int kMinExponent = -120, kMaxExponent = 120;
constexpr double kBestStep = 1.53;  // best step of a three-level quantizer, as a multiple of the mean |x|

int max_code(int bits) { return (1 << (bits - 1)) - 1; }

std::int64_t code_bytes(std::int64_t numel, int bits) { return (numel * bits + 7) / 8; }

// Returns the smallest e with largest <= max_code * 2^e. A double holds the quotient precisely enough to find it.
int exponent_without_clipping(float largest, int bits) {
  int e = 0;
  const double fraction = std::frexp(static_cast<double>(largest) / max_code(bits), &e);  // in [0.5, 1)
  return fraction == 0.5 ? e - 1 : e;
}

int nearest_exponent(double step) { return static_cast<int>(std::lround(std::log2(step))); }

// Returns the exponent of the block's scale, or kMaxExponent + 1 if a number of the block is not finite.
int block_exponent(const float* values, std::int64_t n, int bits) {
  float largest = 0;
  double sum = 0;
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i) {
    const float a = std::fabs(values[i]);
    finite &= a <= std::numeric_limits<float>::max();  // false for NaN
    largest = std::max(largest, a);
    sum += a;
  }
  if (!finite) return kMaxExponent + 1;
  if (largest == 0) return kMinExponent;
  const int e =
      bits == 2 ? nearest_exponent(kBestStep * sum / static_cast<double>(n)) : exponent_without_clipping(largest, bits);
  return std::clamp(e, kMinExponent, kMaxExponent);
}

int code_of(float value, float inverse_scale, int limit) {
  const float scaled = std::clamp(value * inverse_scale, static_cast<float>(-limit), static_cast<float>(limit));
  return static_cast<int>(std::nearbyint(scaled));
}

}  // namespace

std::int64_t quantized_bytes(std::int64_t numel, int bits) { return quantized_blocks(numel) + code_bytes(numel, bits); }

void quantize_blocks(float* values, std::int64_t numel, int bits, std::int64_t first, std::int64_t end,
                     std::byte* message) {
  RING_CHECK(bits == 8 || bits == 4 || bits == 2, "numbers are rounded to 8, 4 or 2 bits, not ", bits);
  const int limit = max_code(bits), per_byte = 8 / bits;
  auto* const scales = reinterpret_cast<std::uint8_t*>(message);
  std::uint8_t* const codes = scales + quantized_blocks(numel);
  for (std::int64_t block = first; block < end; ++block) {
    const std::int64_t begin = block * kQuantizedBlock, n = std::min(kQuantizedBlock, numel - begin);
    float* const v = values + begin;
    std::uint8_t* const to = codes + code_bytes(begin, bits);
    std::fill_n(to, code_bytes(n, bits), std::uint8_t{0});
    const int e = block_exponent(v, n, bits);
    if (e > kMaxExponent) {
      scales[block] = kNotFinite;
      continue;
    }
    scales[block] = static_cast<std::uint8_t>(e + kExponentBias);
    const float scale = std::ldexp(1.0f, e), inverse = std::ldexp(1.0f, -e);
    for (std::int64_t i = 0; i < n; ++i) {
      const int code = code_of(v[i], inverse, limit);
      to[i / per_byte] |=
          static_cast<std::uint8_t>((code & ((1 << bits) - 1)) << (static_cast<int>(i % per_byte) * bits));
      v[i] -= static_cast<float>(code) * scale;
    }
  }
}

void add_quantized_block(const std::byte* message, std::int64_t numel, int bits, std::int64_t block, float* sum) {
  const auto* const scales = reinterpret_cast<const std::uint8_t*>(message);
  const std::int64_t begin = block * kQuantizedBlock, n = std::min(kQuantizedBlock, numel - begin);
  if (scales[block] == kNotFinite) return std::fill_n(sum, n, std::numeric_limits<float>::quiet_NaN()), void();
  const std::uint8_t* const from = scales + quantized_blocks(numel) + code_bytes(begin, bits);
  const float scale = std::ldexp(1.0f, scales[block] - kExponentBias);
  const int per_byte = 8 / bits, sign = 1 << (bits - 1), mask = (1 << bits) - 1;
  for (std::int64_t i = 0; i < n; ++i) {
    const int raw = (from[i / per_byte] >> (static_cast<int>(i % per_byte) * bits)) & mask;
    sum[i] += static_cast<float>((raw ^ sign) - sign) * scale;
  }
}

}  // namespace ring
