#pragma once
// Functions of one float in a few instructions, on the special function units: relative errors near 1e-6.

namespace ring::cuda {

__device__ inline float reciprocal(float x) { return __fdividef(1.0f, x); }  // 0 for x above 2^126
__device__ inline float sigmoid(float x) { return reciprocal(1.0f + __expf(-x)); }

}  // namespace ring::cuda
