#pragma once
// Conversions to e4m3 in device code.

#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/device/vec.cuh"
#include "kernels/fp8.h"

namespace ring::cuda {

// Rounds four values like to_e4m3(), the first in the lowest byte. Requires finite numbers or NaN.
__device__ inline std::uint32_t pack_e4m3(float a, float b, float c, float d) {
  const std::uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
  const std::uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}

// Returns the values of four codes, like from_e4m3().
__device__ inline float4 unpack_e4m3(std::uint32_t codes) {
  const auto two = [](std::uint32_t pair) {
    return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3)));
  };
  const float2 low = two(codes & 0xffffu), high = two(codes >> 16);
  return {low.x, low.y, high.x, high.y};
}

// Loads n codes, 1 or 8, aligned to n bytes, and returns their values.
template <int n>
__device__ Floats<n> load_e4m3(const std::uint8_t* from) {
  static_assert(n == 1 || n == 8);
  if constexpr (n == 1) {
    return {unpack_e4m3(*from).x};
  } else {
    const uint2 codes = *reinterpret_cast<const uint2*>(from);
    const float4 low = unpack_e4m3(codes.x), high = unpack_e4m3(codes.y);
    return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  }
}

// Returns the scale whose exponent bits are stored as `exponent` (kernels/row_encoding.h).
__device__ inline float row_scale(std::uint8_t exponent) { return __uint_as_float(std::uint32_t{exponent} << 23); }

// Device pointers of an FP8 matrix. `values` is null if the matrix is not wanted.
struct Fp8Rows {
  std::uint8_t* values = nullptr;
  float* scales = nullptr;
  std::int64_t value_stride = 0, scale_stride = 0;

  Fp8Rows() = default;
  explicit Fp8Rows(const Fp8Matrix& m) {
    if (!m.defined()) return;
    values = m.values.data<std::uint8_t>(), value_stride = m.values.stride(0);
    scales = m.scales.data<float>(), scale_stride = m.scales.stride(0);
  }
};

}  // namespace ring::cuda
