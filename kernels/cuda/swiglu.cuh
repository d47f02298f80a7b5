#pragma once
// SwiGLU and GEGLU of one element, shared by kernels for different element types.

#include "kernels/activation.h"
#include "kernels/cuda/device/gelu_tanh.cuh"

namespace ring::cuda {

__device__ inline float swiglu_of(float gate, float up) { return gate * (sigmoid(gate) * up); }

struct SwiGluGradients {
  float gate, up;
};
// With s = sigmoid(g): dgate = dy * up * s * (1 + g (1 - s)), dup = dy * g * s.
__device__ inline SwiGluGradients swiglu_gradients(float gate, float up, float dy) {
  const float s = sigmoid(gate), ds = dy * s;
  return {ds * up * (1.0f + gate * (1.0f - s)), ds * gate};
}

template <Gate kind>
__device__ inline float gated(float gate, float up) {
  if constexpr (kind == Gate::silu) return swiglu_of(gate, up);
  return GeluTanh::value(gate) * up;
}

template <Gate kind>
__device__ inline SwiGluGradients gated_gradients(float gate, float up, float dy) {
  if constexpr (kind == Gate::silu) return swiglu_gradients(gate, up, dy);
  return {dy * up * GeluTanh::slope(gate), dy * GeluTanh::value(gate)};
}

}  // namespace ring::cuda
