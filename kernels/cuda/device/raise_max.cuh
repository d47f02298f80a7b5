#pragma once
// Maxima of non-negative numbers over lanes and over a whole kernel.

namespace ring::cuda {

__device__ inline float max_over_lanes(float x, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}

// Raises *max to x. Both must be non-negative: such floats are ordered like their bits. The plain read first
// saves most callers the atomic.
__device__ inline void raise_max(float* max, float x) {
  if (x > *static_cast<volatile float*>(max)) atomicMax(reinterpret_cast<unsigned*>(max), __float_as_uint(x));
}

}  // namespace ring::cuda
