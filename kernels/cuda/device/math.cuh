#pragma once
// Functions of one float that take one or two instructions on the special function units, with relative errors near
// 1e-6. The compiler's __expf and __fdividef spend three more instructions on denormal numbers, and a memory-bound pass
// over bf16 can afford only about 25 instructions per element.

namespace ring::cuda {

inline constexpr float kLog2E = 1.44269504f;

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float reciprocal(float x) {  // returns 0 for x > 2^126
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float sigmoid(float x) { return reciprocal(1.0f + exp2_approx(-kLog2E * x)); }

}  // namespace ring::cuda
