#pragma once
// Arithmetic of a thread block on f32 matrices in global memory, for kernels that must work at every width.

#include "kernels/cuda/launch.h"

namespace ring::cuda {

// Computes C [m,n] = alpha op(A) op(B) + beta C, row-major; op transposes if ta or tb. All threads of the block must
// call it, and need a barrier before and after.
template <bool ta, bool tb>
__device__ __noinline__ void block_product(int m, int n, int k, const float* a, int lda, const float* b, int ldb,
                                           float* c, int ldc, float alpha = 1, float beta = 0) {
  constexpr int size = 4;  // a thread computes squares of this size
  const int columns = (n + size - 1) / size, squares = (m + size - 1) / size * columns;
  for (int square = static_cast<int>(threadIdx.x); square < squares; square += kBlock) {
    const int i0 = square / columns * size, j0 = square % columns * size;
    float sum[size][size] = {};
    for (int p = 0; p < k; ++p) {
      float x[size], y[size];
#pragma unroll
      for (int s = 0; s < size; ++s) {
        const int i = min(i0 + s, m - 1), j = min(j0 + s, n - 1);
        x[s] = ta ? a[p * lda + i] : a[i * lda + p];
        y[s] = tb ? b[j * ldb + p] : b[p * ldb + j];
      }
#pragma unroll
      for (int r = 0; r < size; ++r)
#pragma unroll
        for (int s = 0; s < size; ++s) sum[r][s] += x[r] * y[s];
    }
    for (int r = 0; r < size && i0 + r < m; ++r)
      for (int s = 0; s < size && j0 + s < n; ++s) {
        float& to = c[(i0 + r) * ldc + j0 + s];
        to = alpha * sum[r][s] + (beta == 0 ? 0.0f : beta * to);
      }
  }
}

// Calls f(i, j) for all elements of a [rows, columns] matrix.
template <class F>
__device__ inline void for_elements(int rows, int columns, const F& f) {
  for (int at = static_cast<int>(threadIdx.x); at < rows * columns; at += kBlock) f(at / columns, at % columns);
}

// Calls f(row, lane) for all rows, with a warp per row.
template <class F>
__device__ inline void for_warp_rows(int rows, const F& f) {
  for (int row = static_cast<int>(threadIdx.x) / kWarp; row < rows; row += kWarps)
    f(row, static_cast<int>(threadIdx.x) % kWarp);
}

// Returns the product of two rows. All lanes of a warp must call it.
__device__ inline float warp_dot(const float* x, const float* y, int n, int lane) {
  float sum = 0;
  for (int c = lane; c < n; c += kWarp) sum += x[c] * y[c];
  return warp_sum(sum);
}

}  // namespace ring::cuda
