#include "checkpoint/safetensors/float_type.h"

#include <Eigen/Core>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "core/dtype.h"

namespace ring {
namespace {

template <class T>
T read(const std::byte* bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void write(std::byte* bytes, std::size_t i, T value) {
  std::memcpy(bytes + i * sizeof(T), &value, sizeof(T));
}

// An exponent with all bits set means infinity or NaN. There is no early exit, so that the loop vectorizes.
template <class Bits>
bool no_exponent_is(Bits full, const std::byte* bytes, std::size_t count) {
  Bits found = 0;
  for (std::size_t i = 0; i < count; ++i) found |= (read<Bits>(bytes, i) & full) == full;
  return !found;
}

float half_to_float(std::uint16_t bits) { return static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(bits)); }
std::uint16_t float_to_half(float x) { return Eigen::numext::bit_cast<std::uint16_t>(Eigen::half(x)); }

[[noreturn]] void fail_beyond(float x, FloatType to) {
  fail(x, " is outside the range of ", safetensors_name(to), ": use BF16 or F32");
}

void check_kept(float before, float after, FloatType to) {
  if (std::isfinite(before) && !std::isfinite(after)) fail_beyond(before, to);
}

}  // namespace

std::string_view safetensors_name(FloatType t) {
  switch (t) {
    case FloatType::f32: return "F32";
    case FloatType::f16: return "F16";
    case FloatType::bf16: return "BF16";
  }
  return "?";
}

std::optional<FloatType> parse_float_type(std::string_view name) {
  for (const FloatType t : {FloatType::f32, FloatType::f16, FloatType::bf16})
    if (name == safetensors_name(t)) return t;
  return std::nullopt;
}

void widen(FloatType from, const std::byte* bytes, std::size_t count, float* to) {
  if (from == FloatType::f32 && count > 0) std::memcpy(to, bytes, count * sizeof(float));
  if (from == FloatType::f16)
    for (std::size_t i = 0; i < count; ++i) to[i] = half_to_float(read<std::uint16_t>(bytes, i));
  if (from == FloatType::bf16)
    for (std::size_t i = 0; i < count; ++i) to[i] = to_float(read<bf16>(bytes, i));
}

bool all_finite(FloatType type, const std::byte* bytes, std::size_t count) {
  if (type == FloatType::f32) return no_exponent_is<std::uint32_t>(0x7F800000, bytes, count);
  return no_exponent_is<std::uint16_t>(type == FloatType::f16 ? 0x7C00 : 0x7F80, bytes, count);
}

void round_to(FloatType to, const float* from, std::size_t count, std::byte* bytes) {
  if (to == FloatType::f32 && count > 0) std::memcpy(bytes, from, count * sizeof(float));
  for (std::size_t i = 0; i < count && to == FloatType::f16; ++i) {
    const std::uint16_t half = float_to_half(from[i]);
    check_kept(from[i], half_to_float(half), to);
    write(bytes, i, half);
  }
  for (std::size_t i = 0; i < count && to == FloatType::bf16; ++i) {
    const bf16 rounded = to_bf16(from[i]);
    check_kept(from[i], to_float(rounded), to);
    write(bytes, i, rounded);
  }
}

}  // namespace ring
