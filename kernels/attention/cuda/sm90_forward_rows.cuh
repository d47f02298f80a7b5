#pragma once
// Forward for Hopper: a consumer's online softmax and its epilogue.

#include "kernels/attention/cuda/sm90_forward_producer.cuh"

namespace ring::cuda::sm90 {

// Running row max and row sum of a lane's two rows, 8 apart, which are half 0 and half 1 of its accumulators. wgmma
// orders a lane's accumulators as [blocks of 8 columns][half][2 adjacent columns]. Until the epilogue, `total` only
// covers this lane's columns.
struct RowSums {
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
};

__device__ inline float over_quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float over_quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Change of the row max by a tile. `shift` is subtracted from the tile's scaled scores, and accumulators of earlier
// tiles are multiplied by `rescale`. Unless `moved`, `rescale` is 1 for all rows of the warp, except 0 for rows that
// have seen no keys yet, whose accumulators are 0.
struct Shift {
  float shift[2], rescale[2];
  bool moved;
};

// Updates the row maxima with the scores of a tile. scale_log2: attention scale * log2(e).
template <int kColumns>
__device__ inline Shift row_max(RowSums& sums, const Sums<kColumns>& scores, float scale_log2) {
  Shift to;
  bool moved = false;
  // found[e]: maximum of accumulators e, e + 8, ..; those of half 0 are e = 0, 1, 4 and 5. These are four independent
  // chains per row: a single chain would pay the full latency for each score.
  float found[8];
#pragma unroll
  for (int i = 0; i < scores.kElements; ++i) found[i % 8] = i < 8 ? scores[i] : fmaxf(found[i % 8], scores[i]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* f = found + 2 * half;
    const float best = over_quad_max(fmaxf(fmaxf(sums.largest[half], fmaxf(f[0], f[1])), fmaxf(f[4], f[5])));
    // Rounds the products (no FMA), because accumulators of earlier tiles are relative to the rounded shift.
    to.shift[half] = best == -INFINITY ? 0.0f : __fmul_rn(best, scale_log2);
    to.rescale[half] = fast_exp2(__fmul_rn(sums.largest[half], scale_log2) - to.shift[half]);
    moved |= best != sums.largest[half];
    sums.largest[half] = best;
  }
  to.moved = __any_sync(0xffffffffu, moved);
  return to;
}

// Converts scores to the weights P as bf16 A-operand fragments. `keeps` is a dropout policy (sm90_dropout.cuh). Row
// sums include dropped elements.
template <int kColumns, class Keeps>
__device__ inline void exp2(OperandA<kColumns>& weights, RowSums& sums, const Sums<kColumns>& scores, const Shift& by,
                            float scale_log2, const Keeps& keeps) {
  float total[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < scores.kElements; i += 2) {
    const int half = i / 2 % 2;
    const float a = fast_exp2(fmaf(scores[i], scale_log2, -by.shift[half])),
                b = fast_exp2(fmaf(scores[i + 1], scale_log2, -by.shift[half]));
    total[half] += a;
    total[half] += b;
    weights.data[i / 8][i / 2 % 4] = keeps(i, a, b);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) sums.total[half] = sums.total[half] * by.rescale[half] + total[half];
}

// Factor that normalizes a row of accumulators, and the row's log-sum-exp. dropout_scale: 1 / (1 - dropout rate).
struct RowEnd {
  float norm, lse;
  __device__ RowEnd(float largest, float total, float scale_log2, float dropout_scale) {
    norm = total == 0.0f ? 0.0f : dropout_scale / total;
    lse = total == 0.0f ? -INFINITY : (__fmul_rn(largest, scale_log2) + log2f(total)) * kLn2;
  }
};

// Epilogue that merges with a carry, if there is one, and writes directly to global memory.
template <int kDim>
__device__ inline void write_merged(const ForwardParams& p, const WarpRows& rows, const Sums<kDim>& out,
                                    const RowSums& sums, float dropout_scale) {
  float factor[2], kept[2] = {0, 0}, lse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = rows.row(half);
    const RowEnd end(sums.largest[half], over_quad_sum(sums.total[half]), p.factor, dropout_scale);
    factor[half] = end.norm, lse[half] = end.lse;
    if (!p.out.carry.data || !rows.exists(row)) continue;
    const Merged both = merge(lse[half], p.lse[rows.head * p.tokens + rows.token(row)]);
    lse[half] = both.lse;
    factor[half] *= both.own;
    kept[half] = both.before;
  }
  __syncwarp();  // all lanes of a row have read lse
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = rows.row(half);
    write_row<kDim>(out, half, factor[half], kept[half], p.out, rows.token(row), rows.head, p.dim, rows.exists(row));
    if (rows.lane % 4 == 0 && rows.exists(row)) p.lse[rows.head * p.tokens + rows.token(row)] = lse[half];
  }
}

// Epilogue: writes rows of out in bf16, staged in shared memory.
template <int kDim, int kRows>
__device__ inline void write_staged(const ForwardParams& p, const WarpRows& rows, const Sums<kDim>& out,
                                    const RowSums& sums, float dropout_scale, const StagedRows<kDim, kRows>& staged) {
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = rows.row(half);
    const RowEnd end(sums.largest[half], over_quad_sum(sums.total[half]), p.factor, dropout_scale);
    factor[half] = end.norm;
    if (rows.lane % 4 == 0 && rows.exists(row)) p.lse[rows.head * p.tokens + rows.token(row)] = end.lse;
  }
  staged.store(out, factor);
  __syncwarp();
  staged.copy_out(p.out, p.dim, rows);
  fence_proxy_async();  // TMA loads into this memory next
  __syncwarp();
}

}  // namespace ring::cuda::sm90
