#pragma once
// Element types of tensors, and the devices that hold tensors.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string_view>

#include "core/check.h"

namespace ring {

enum class DType : std::uint8_t { f32, bf16, i32, u8 };

constexpr std::size_t size_of(DType t) {
  switch (t) {
    case DType::f32: return 4;
    case DType::bf16: return 2;
    case DType::i32: return 4;
    case DType::u8: return 1;
  }
  return 0;
}

constexpr std::string_view to_string(DType t) {
  switch (t) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
  }
  return "?";
}
inline std::ostream& operator<<(std::ostream& out, DType t) { return out << to_string(t); }
DType parse_dtype(std::string_view name);  // throws Error, which lists the known types

// Used for storage only: arithmetic converts to float.
struct bf16 {
  std::uint16_t bits;
};
constexpr float to_float(bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
constexpr bf16 to_bf16(float x) {  // rounds to nearest even; NaN stays NaN
  const auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>(u >> 16 | 0x40u)};
  return {static_cast<std::uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};

enum class Backend : std::uint8_t { cpu, cuda };
inline constexpr std::size_t kBackends = 2;
constexpr std::string_view to_string(Backend b) { return b == Backend::cpu ? "cpu" : "cuda"; }

struct Device {
  Backend backend = Backend::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, Device d) { return out << to_string(d.backend) << ':' << d.index; }

}  // namespace ring
