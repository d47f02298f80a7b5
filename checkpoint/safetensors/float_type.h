#pragma once
// Float types of published weights, and conversion to and from f32. `bytes` may be unaligned.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ring {

enum class FloatType : std::uint8_t { f32, f16, bf16 };

constexpr std::size_t size_of(FloatType t) { return t == FloatType::f32 ? 4 : 2; }
std::string_view safetensors_name(FloatType);                      // "F32", "F16", "BF16"
std::optional<FloatType> parse_float_type(std::string_view name);  // nullopt if it is none of these

// Converts to f32, which is exact. `to` must have space for `count` floats.
void widen(FloatType from, const std::byte* bytes, std::size_t count, float* to);
bool all_finite(FloatType, const std::byte* bytes, std::size_t count);
// Rounds to nearest even. Throws Error if a finite number exceeds the range of the type (65504 for f16).
void round_to(FloatType to, const float* from, std::size_t count, std::byte* bytes);

}  // namespace ring
