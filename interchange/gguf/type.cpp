#include "interchange/gguf/type.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/safetensors/float_type.h"
#include "core/check.h"

namespace ring {
namespace {

constexpr std::size_t kBlock = kQ8Block;
constexpr std::size_t kScaleBytes = 2;

// Quantizes a block of kQ8Block values to q8_0: the largest magnitude becomes 127. Like ggml, divides values by the
// scale before the scale is rounded to f16.
void round_block(const float* from, std::byte* to) {
  float largest = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    if (!std::isfinite(from[i])) fail("a value is ", from[i]);
    largest = std::max(largest, std::abs(from[i]));
  }
  const float scale = largest / 127;
  round_to(FloatType::f16, &scale, 1, to);
  float kept = 0;
  widen(FloatType::f16, to, 1, &kept);
  const float inverse = kept > 0 ? 1 / scale : 0;  // if the scale rounds to 0 in f16, the block becomes 0
  for (std::size_t i = 0; i < kBlock; ++i) {
    const auto rounded = static_cast<std::int8_t>(std::round(from[i] * inverse));
    std::memcpy(to + kScaleBytes + i, &rounded, 1);
  }
}

FloatType float_type(GgufType type) {
  if (type == GgufType::f32) return FloatType::f32;
  return type == GgufType::f16 ? FloatType::f16 : FloatType::bf16;
}

}  // namespace

std::string_view gguf_name(GgufType type) {
  return type == GgufType::q8_0 ? "Q8_0" : safetensors_name(float_type(type));
}

std::uint64_t gguf_bytes(GgufType type, std::uint64_t values) {
  if (type == GgufType::q8_0) return values / kBlock * (kScaleBytes + kBlock);
  return values * size_of(float_type(type));
}

void gguf_round(GgufType type, const float* from, std::size_t count, std::byte* to) {
  if (type != GgufType::q8_0) return round_to(float_type(type), from, count, to);
  RING_CHECK(count % kBlock == 0, count, " values are not whole blocks of ", kBlock);
  for (std::size_t i = 0; i < count; i += kBlock) round_block(from + i, to + gguf_bytes(type, i));
}

}  // namespace ring
