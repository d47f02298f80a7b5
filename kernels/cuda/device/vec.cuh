#pragma once
// Where a thread stands in the grid, and four neighbouring floats: the most that one of its accesses moves.

#include <cstdint>

namespace ring::cuda {

__device__ inline std::int64_t thread_x() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline std::int64_t thread_y() { return std::int64_t{blockIdx.y} * blockDim.y + threadIdx.y; }
__device__ inline std::int64_t threads_x() { return std::int64_t{gridDim.x} * blockDim.x; }
__device__ inline std::int64_t threads_y() { return std::int64_t{gridDim.y} * blockDim.y; }

struct Quad {
  float v[4];
};

__device__ inline bool is_aligned(const float* p) { return (reinterpret_cast<std::uintptr_t>(p) & 15) == 0; }

// Elements [i, i + 4) of p[0..n), i may be negative: one 16-byte access where all are inside and the address allows it.
// What lies outside reads as 0 and is not written.
__device__ inline Quad load(const float* p, std::int64_t i, std::int64_t n) {
  if (i >= 0 && i + 4 <= n && is_aligned(p + i)) {
    const float4 t = *reinterpret_cast<const float4*>(p + i);
    return {{t.x, t.y, t.z, t.w}};
  }
  Quad q;
#pragma unroll
  for (int j = 0; j < 4; ++j) q.v[j] = i + j >= 0 && i + j < n ? p[i + j] : 0.0f;
  return q;
}

__device__ inline void store(float* p, std::int64_t i, std::int64_t n, const Quad& q) {
  if (i >= 0 && i + 4 <= n && is_aligned(p + i)) {
    *reinterpret_cast<float4*>(p + i) = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (i + j >= 0 && i + j < n) p[i + j] = q.v[j];
}

// dst = beta * dst + value, beta = 0 not reading dst.
__device__ inline void accumulate(float* p, std::int64_t i, std::int64_t n, float beta, Quad q) {
  if (beta != 0) {
    const Quad old = load(p, i, n);
#pragma unroll
    for (int j = 0; j < 4; ++j) q.v[j] += beta * old.v[j];
  }
  store(p, i, n, q);
}

}  // namespace ring::cuda
