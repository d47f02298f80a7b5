#pragma once
// SwiGLU of one element, shared by kernels for different element types.

#include "kernels/cuda/device/math.cuh"

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

}  // namespace ring::cuda
