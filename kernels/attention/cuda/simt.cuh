#pragma once
// Tiles of f32 rows in shared memory, and GEMMs with plain FMAs: 16 x 16 threads, each with kR neighbouring rows of the
// result. A row's pitch in shared memory is an odd number of 16-byte words, so that rows read by neighbouring lanes are
// in different banks.

#include "kernels/attention/cuda/dropout.cuh"
#include "kernels/cuda/device/vec.cuh"

namespace ring::cuda {

constexpr int kSide = 16, kSimtThreads = kSide * kSide;
constexpr int simt_pitch(int columns) { return columns + 4; }  // columns: a multiple of 8

struct Lanes {
  int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
};

template <Stationary owner>
using SimtState = CtaState<owner, kSimtThreads / kWarp>;

// Loads kRows rows, `stride` elements apart, from `global` on and converts them to f32. Rows that are out of range
// become 0.
template <int kRows, class T>
__device__ inline void load_rows(float* shared, const T* global, std::int64_t stride, Range exist, int dim) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, pitch = simt_pitch(dim);
  for (int r = static_cast<int>(threadIdx.x) / kWarp; r < kRows; r += kSimtThreads / kWarp)
    for (int c = lane; c < dim; c += kWarp)
      shared[r * pitch + c] = exist.has(r) ? to_float(global[r * stride + c]) : 0.0f;
}

// Returns cap * tanh(score / cap), or the score if cap is 0. All three are already multiplied by log2(e).
__device__ inline float capped(float score, float cap) { return cap == 0 ? score : __fmul_rn(cap, tanhf(score / cap)); }

// c[i][j] = row (y kR + i) of a times row (x + 16 j) of b.
template <int kR>
__device__ inline void dot_rows(float (&c)[kR][kR], const float* a, const float* b, int dim) {
  const Lanes t;
  const int pitch = simt_pitch(dim);
#pragma unroll
  for (int i = 0; i < kR * kR; ++i) c[i / kR][i % kR] = 0.0f;
#pragma unroll 2
  for (int d = 0; d < dim; d += 4) {
    float4 x[kR], y[kR];
#pragma unroll
    for (int i = 0; i < kR; ++i) {
      x[i] = *reinterpret_cast<const float4*>(a + (t.y * kR + i) * pitch + d);
      y[i] = *reinterpret_cast<const float4*>(b + (t.x + kSide * i) * pitch + d);
    }
#pragma unroll
    for (int i = 0; i < kR; ++i)
#pragma unroll
      for (int j = 0; j < kR; ++j) {
        c[i][j] = fmaf(x[i].x, y[j].x, c[i][j]);
        c[i][j] = fmaf(x[i].y, y[j].y, c[i][j]);
        c[i][j] = fmaf(x[i].z, y[j].z, c[i][j]);
        c[i][j] = fmaf(x[i].w, y[j].w, c[i][j]);
      }
  }
}

// Writes a result of dot_rows to shared memory. The 16 threads with the same y write and read whole rows of the
// result, and belong to one warp.
template <int kR>
__device__ inline void put_rows(float* shared, const float (&c)[kR][kR]) {
  const Lanes t;
  constexpr int pitch = simt_pitch(kSide * kR);
  __syncwarp();  // the previous contents have been read
#pragma unroll
  for (int i = 0; i < kR; ++i)
#pragma unroll
    for (int j = 0; j < kR; ++j) shared[(t.y * kR + i) * pitch + t.x + kSide * j] = c[i][j];
  __syncwarp();
}

// A thread's accumulators: rows y kR + i, and for each c the four columns from 4 x + 64 c on.
template <int kR, int kDim>
using Sums = float[kR][kDim / 64][4];

// sums += p (from put_rows) * b
template <int kR, int kDim>
__device__ inline void add_product(Sums<kR, kDim>& sums, const float* p, const float* b, int dim) {
  const Lanes t;
  constexpr int kInner = kSide * kR, p_pitch = simt_pitch(kInner);
  const int pitch = simt_pitch(dim);
#pragma unroll 1
  for (int k = 0; k < kInner; k += 4) {
    float x[kR][4];
#pragma unroll
    for (int i = 0; i < kR; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(p + (t.y * kR + i) * p_pitch + k);
      x[i][0] = four.x, x[i][1] = four.y, x[i][2] = four.z, x[i][3] = four.w;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
#pragma unroll
      for (int c = 0; c < kDim / 64; ++c) {
        const int column = 4 * t.x + 64 * c;
        if (column >= dim) continue;
        const float4 y = *reinterpret_cast<const float4*>(b + (k + e) * pitch + column);
#pragma unroll
        for (int i = 0; i < kR; ++i) {
          sums[i][c][0] = fmaf(x[i][e], y.x, sums[i][c][0]);
          sums[i][c][1] = fmaf(x[i][e], y.y, sums[i][c][1]);
          sums[i][c][2] = fmaf(x[i][e], y.z, sums[i][c][2]);
          sums[i][c][3] = fmaf(x[i][e], y.w, sums[i][c][3]);
        }
      }
  }
}

template <int kR, int kDim>
__device__ inline void clear_sums(Sums<kR, kDim>& sums) {
#pragma unroll
  for (int i = 0; i < kR; ++i)
#pragma unroll
    for (int c = 0; c < kDim / 64 * 4; ++c) sums[i][c / 4][c % 4] = 0.0f;
}

// Sets masked scores or probabilities to `to`. row: first row of the thread block; column: first column of the tile.
template <Stationary owner, int kR>
__device__ inline void mask_sums(float (&c)[kR][kR], const HeadSegment& segment, int row, int column, float to) {
  const Lanes t;
#pragma unroll
  for (int i = 0; i < kR; ++i) {
    const Columns seen = segment.columns<owner>(row + t.y * kR + i);
#pragma unroll
    for (int j = 0; j < kR; ++j)
      if (!seen.has(column + t.x + kSide * j)) c[i][j] = to;
  }
}

// Epilogue: writes the accumulators times `factor`, plus carry * kept (the carry is not read if kept is 0).
template <int kR, int kDim>
__device__ inline void write_sums(const Sums<kR, kDim>& sums, const float (&factor)[kR], const float (&kept)[kR],
                                  const RowsOut& to) {
  const Lanes t;
#pragma unroll
  for (int i = 0; i < kR; ++i)
#pragma unroll
    for (int c = 0; c < kDim / 64; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = t.y * kR + i, column = 4 * t.x + 64 * c + e;
        if (!to.exist.has(row) || column >= to.columns) continue;
        float sum = sums[i][c][e] * factor[i];
        if (to.carry && kept[i] != 0.0f) sum = fmaf(to.carry[row * to.carry_stride + column], kept[i], sum);
        if (to.half)
          to.half[row * to.stride + column] = from_float<__nv_bfloat16>(sum);
        else
          to.whole[row * to.stride + column] = sum;
      }
}

}  // namespace ring::cuda
