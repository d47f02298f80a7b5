#pragma once
// RoPE rotations, shared by kernels for different element types.

#include <cstdint>

namespace ring::cuda {

struct Rotation {
  float cosine, sine;
};

// Angles can reach millions of radians. They are reduced to one turn in f64, after which f32 is precise enough.
__device__ inline Rotation rotation(std::int32_t position, float inv_freq, float sign) {
  constexpr double kPerRadian = 0.15915494309189535;  // turns per radian
  const double turns = position * (static_cast<double>(inv_freq) * kPerRadian);
  Rotation r;
  sincospif(2.0f * static_cast<float>(turns - rint(turns)), &r.sine, &r.cosine);
  r.sine *= sign;
  return r;
}

}  // namespace ring::cuda
