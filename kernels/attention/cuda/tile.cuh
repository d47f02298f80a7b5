#pragma once
// Tiles of bf16 rows in shared memory, and GEMMs of a warp's own rows with a tile. Each row is padded by 16 bytes, so
// that the eight rows of an ldmatrix are in different banks and every address is one register plus a constant.

#include "kernels/attention/cuda/cta_state.cuh"
#include "kernels/cuda/device/mma.cuh"

namespace ring::cuda {

using Bf16 = __nv_bfloat16;

// Bytes between rows of a tile.
template <int kDim>
constexpr int kPitch = (kDim + 8) * 2;

// ldmatrix offsets of a lane, relative to a tile's address. rows_first: for A, and for a B whose rows are the
// contraction dimension (loaded transposed). columns_first: for a B whose rows are columns of the result.
template <int kDim>
__device__ inline std::uint32_t rows_first(int lane) {
  return (lane & 15) * kPitch<kDim> + (lane >> 4) * 16;
}
template <int kDim>
__device__ inline std::uint32_t columns_first(int lane) {
  return ((lane & 7) + (lane >> 4) * 8) * kPitch<kDim> + ((lane >> 3) & 1) * 16;
}

// Issues cp.async copies of kRows rows of `global`, `stride` elements apart. Rows outside `exist` and columns from
// `dim` on become 0: they are not read, although their addresses are computed. A single running address needs fewer
// registers than one address per copy.
template <int kDim, int kRows, int kThreads>
__device__ inline void load_tile(unsigned char* shared, const Bf16* global, std::int64_t stride, Range exist, int dim) {
  constexpr int kChunks = kDim / 8, kStep = kThreads / kChunks;  // chunks per row; rows per step
  static_assert(kThreads % kChunks == 0 && kRows % kStep == 0);
  const int first = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;
  const Bf16* from = global + first * stride + chunk * 8;
  const int skipped = exist.first - first;
  const auto count = static_cast<unsigned>(chunk * 8 < dim ? exist.end - exist.first : 0);
  shared += first * kPitch<kDim> + chunk * 16;
#pragma unroll
  for (int row = 0; row < kRows; row += kStep) {
    cp_async16(shared + row * kPitch<kDim>, from, static_cast<unsigned>(row - skipped) < count);
    from += kStep * stride;
  }
}

template <int kM, int kN>
__device__ inline void clear(float (&c)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0.0f;
}

// c += (rows of a) * (rows of b)^T over kDim columns: 16 kM rows, 8 kN columns. Offsets: rows_first for a,
// columns_first for b.
template <int kDim, int kM, int kN>
__device__ inline void gemm_nt(float (&c)[kM][kN][4], std::uint32_t a, std::uint32_t b) {
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    std::uint32_t x[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) ldmatrix(x[m], a + m * 16 * kPitch<kDim> + k * 32);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t y[4];
      ldmatrix(y, b + n * 8 * kPitch<kDim> + k * 32);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_m16n8k16(c[m][n], x[m], y[0], y[1]);
        mma_m16n8k16(c[m][n + 1], x[m], y[2], y[3]);
      }
    }
  }
}

// Converts f32 accumulators to bf16 A-operand fragments.
template <int kM, int kN>
__device__ inline void as_operand(std::uint32_t (&p)[kM][kN / 2][4], const float (&c)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int k = 0; k < kN / 2; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        p[m][k][i] = pack_bf16(c[m][2 * k + i / 2][i % 2 * 2], c[m][2 * k + i / 2][i % 2 * 2 + 1]);
}

// c += p * (tile b), whose 16 kK rows are the contraction dimension. Offset: rows_first for b.
template <int kDim, int kM, int kN, int kK>
__device__ inline void gemm_nn(float (&c)[kM][kN][4], const std::uint32_t (&p)[kM][kK][4], std::uint32_t b) {
#pragma unroll
  for (int k = 0; k < kK; ++k)
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t y[4];
      ldmatrix_trans(y, b + k * 16 * kPitch<kDim> + n * 16);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_m16n8k16(c[m][n], p[m][k], y[0], y[1]);
        mma_m16n8k16(c[m][n + 1], p[m][k], y[2], y[3]);
      }
    }
}

// Writes a warp's accumulators as bf16: first to the warp's own rows of a tile at `shared`, then to global memory in
// 16-byte chunks. No other warp may be using these rows: the tile's last readers must have passed a barrier.
// Accumulators and tile have 8 kN columns, of which `columns` are valid.
template <int kDim, int kM, int kN>
__device__ inline void store_rows(const float (&c)[kM][kN][4], unsigned char* shared, Bf16* global, std::int64_t stride,
                                  Range exist, int columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<std::uint32_t*>(shared + (m * 16 + half * 8 + g) * kPitch<kDim> + n * 16 + t * 4) =
            pack_bf16(c[m][n][2 * half], c[m][n][2 * half + 1]);
  __syncwarp();
  for (int i = lane; i < 16 * kM * kN; i += 32) {
    const int row = i / kN, chunk = i % kN;
    if (exist.has(row) && chunk * 8 < columns)
      *reinterpret_cast<uint4*>(global + row * stride + chunk * 8) =
          *reinterpret_cast<const uint4*>(shared + row * kPitch<kDim> + chunk * 16);
  }
}

}  // namespace ring::cuda
