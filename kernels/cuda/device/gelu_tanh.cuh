#pragma once
// The tanh approximation of GELU for one element. Kernels for MLPs with and without a gate share it.

#include "kernels/cuda/device/math.cuh"

namespace ring::cuda {

// 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
struct GeluTanh {
  static constexpr float k = 2 * 0.797884561f, cubic = k * 0.044715f;
  static __device__ float gate(float x, float square) {
    return reciprocal(1.0f + exp2_approx(x * (-kLog2E * k - kLog2E * cubic * square)));
  }
  static __device__ float value(float x) { return x * gate(x, x * x); }
  static __device__ float slope(float x) {
    const float square = x * x, s = gate(x, square);
    return s + x * s * (1.0f - s) * (k + 3.0f * cubic * square);
  }
};

}  // namespace ring::cuda
