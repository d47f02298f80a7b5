#pragma once
// Shared parts of the tensor-core (mma.sync) forward and backward: masks and epilogues.

#include "kernels/attention/cuda/dropout.cuh"
#include "kernels/attention/cuda/tile.cuh"

namespace ring::cuda {

// Sets masked scores to -inf. row, column: first row and column of the warp's tile.
template <Stationary owner, int kM, int kN>
__device__ inline void mask_columns(float (&s)[kM][kN][4], const HeadSegment& segment, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  column += lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Columns seen = segment.columns<owner>(row + m * 16 + half * 8 + lane / 4);
      const int first = seen.first - column, end = seen.end - column;
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (n * 8 + i < first || n * 8 + i >= end) s[m][n][2 * half + i] = -INFINITY;
      const int hole = seen.hole - column, hole_end = seen.hole_end - column;
      if (hole >= hole_end) continue;
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (n * 8 + i >= hole && n * 8 + i < hole_end) s[m][n][2 * half + i] = -INFINITY;
    }
}

// Calls fn(pointer to two neighbouring accumulators, row, column, m, half) for each such pair in a valid row.
template <int kM, int kN, class Fn>
__device__ inline void for_pairs(float (&c)[kM][kN][4], const RowsOut& to, const Fn& fn) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m * 16 + half * 8 + lane / 4;
      if (!to.exist.has(row)) continue;
#pragma unroll
      for (int n = 0; n < kN; ++n)
        if (n * 8 < to.columns) fn(&c[m][n][2 * half], row, n * 8 + lane % 4 * 2, m, half);
    }
}

// Epilogue: writes a warp's accumulators times `factor`, plus carry * kept (the carry is not read if kept is 0).
// factor[m][0] is for row g of a fragment, factor[m][1] for row g + 8. For `shared`, see store_rows.
template <int kDim, int kM, int kN>
__device__ inline void write_rows(float (&c)[kM][kN][4], const float (&factor)[kM][2], const float (&kept)[kM][2],
                                  unsigned char* shared, const RowsOut& to) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] *= factor[m][i / 2];
  if (to.carry)
    for_pairs(c, to, [&](float* sums, int row, int column, int m, int half) {
      if (kept[m][half] == 0.0f) return;
      const float2 before = *reinterpret_cast<const float2*>(to.carry + row * to.carry_stride + column);
      sums[0] = fmaf(before.x, kept[m][half], sums[0]);
      sums[1] = fmaf(before.y, kept[m][half], sums[1]);
    });
  if (to.half) return store_rows<kDim>(c, shared, to.half, to.stride, to.exist, to.columns);
  for_pairs(c, to, [&](const float* sums, int row, int column, int, int) {
    *reinterpret_cast<float2*>(to.whole + row * to.stride + column) = make_float2(sums[0], sums[1]);
  });
}

// Launchers of one pass for head dims of up to kDim, each defined in its own translation unit. `keys` is the result of
// dropout_keys().
template <int kDim, bool kDrops>
void run_mma_forward(const Attention&, const BranchPass&, const Tensor& keys, const ExecContext&);
template <int kDim, bool kDrops>
void run_mma_backward(const AttentionBackward&, const BranchPass&, Gradient, const RowStatistics&, const ExecContext&);

}  // namespace ring::cuda
