#pragma once
// Backward for Hopper: code that consumer warp groups run between their GEMMs (probabilities P and score gradients dS),
// and the epilogue that writes gradients. sm90_backward.cuh has the formulas, and defines the gradients dx and dy.

#include "kernels/attention/cuda/sm90_backward_producer.cuh"

namespace ring::cuda::sm90 {

// The values of lse and delta that a lane needs. If queries are stationary, they are those of the lane's two rows.
// Otherwise they are those of its columns, in registers (in_registers) or read from shared memory at each use.
template <Stationary owner, int kColumns, bool in_registers>
struct LaneStatistics {
  static constexpr bool kOfRows = owner == Stationary::q;
  static constexpr int kCount = kOfRows ? 2 : in_registers ? kColumns / 4 : 1;
  float lse2_of[kCount], delta_of[kCount];
  const float *lse2_at, *delta_at;

  template <int kConsumers>
  __device__ void load_rows(const TmaBackwardParams& p, const Job<kConsumers>& job, int row) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = row + 8 * half;
      const bool exists = j >= job.first && j < job.end;
      const std::int64_t at = job.head * p.tokens + job.segment.q_row + std::int64_t{j} * job.segment.rate;
      lse2_of[half] = exists ? p.lse2[at] : INFINITY;
      delta_of[half] = exists ? p.delta[at] : 0.0f;
    }
  }
  __device__ void load_lse2(const float* columns) { load_columns(lse2_of, lse2_at, columns); }
  __device__ void load_delta(const float* columns) { load_columns(delta_of, delta_at, columns); }
  // Return the values for a lane's four accumulator elements in the 8 columns from 8n on. With g = lane / 4 and
  // t = lane % 4, the elements are in rows g, g, g + 8, g + 8 and in columns 2t, 2t + 1, 2t, 2t + 1 of these 8.
  __device__ float4 lse2(int n) const { return spread(lse2_of, lse2_at, n); }
  __device__ float4 delta(int n) const { return spread(delta_of, delta_at, n); }

 private:
  __device__ static void load_columns(float (&to)[kCount], const float*& at, const float* columns) {
    at = columns + lane() % 4 * kLaneStatistics;
    if constexpr (in_registers)
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const float4 c = *reinterpret_cast<const float4*>(at + i);
        to[i] = c.x, to[i + 1] = c.y, to[i + 2] = c.z, to[i + 3] = c.w;
      }
  }
  __device__ static float4 spread(const float (&of)[kCount], const float* at, int n) {
    if constexpr (kOfRows) return {of[0], of[0], of[1], of[1]};
    float2 c;
    if constexpr (in_registers)
      c = {of[2 * n], of[2 * n + 1]};
    else
      c = *reinterpret_cast<const float2*>(at + 2 * n);
    return {c.x, c.y, c.x, c.y};
  }
};

// Converts scores to P in place.
template <int kColumns, class Statistics>
__device__ inline void weights_of(Sums<kColumns>& s, const Statistics& of, float factor) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const float4 l = of.lse2(n);
    s[4 * n] = fast_exp2(fmaf(s[4 * n], factor, -l.x)), s[4 * n + 1] = fast_exp2(fmaf(s[4 * n + 1], factor, -l.y));
    s[4 * n + 2] = fast_exp2(fmaf(s[4 * n + 2], factor, -l.z));
    s[4 * n + 3] = fast_exp2(fmaf(s[4 * n + 3], factor, -l.w));
  }
}
// Converts dP to dS = P (dP - delta) in place.
template <int kColumns, class Statistics>
__device__ inline void score_gradients(Sums<kColumns>& dp, const Sums<kColumns>& w, const Statistics& of) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const float4 d = of.delta(n);
    dp[4 * n] = w[4 * n] * (dp[4 * n] - d.x), dp[4 * n + 1] = w[4 * n + 1] * (dp[4 * n + 1] - d.y);
    dp[4 * n + 2] = w[4 * n + 2] * (dp[4 * n + 2] - d.z), dp[4 * n + 3] = w[4 * n + 3] * (dp[4 * n + 3] - d.w);
  }
}

// Like score_gradients(), with dropout: dropped elements of P have a negative sign, and their dP is taken as 0.
template <int kColumns, class Statistics>
__device__ inline void kept_score_gradients(Sums<kColumns>& dp, const Sums<kColumns>& w, const Statistics& of) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const float4 d = of.delta(n);
    const float delta[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
    for (int i = 4 * n; i < 4 * n + 4; ++i) dp[i] = fabsf(w[i]) * fmaf(is_positive(w[i]), dp[i], -delta[i % 4]);
  }
}

// Returns the index of a job's first row in the partial sums of split lists, which have 128 rows per slot.
template <int kConsumers>
__device__ inline std::int64_t row_of_slot(const Job<kConsumers>& job) {
  return std::int64_t{job.slot} * kListRows + (kConsumers == 1 ? job.row % kListRows : 0);
}

// Returns `output`; for heads of 256, through an asm statement that hides its value from the compiler. Without it, the
// compiler computes the addresses of all columns before the loop over jobs, and they do not fit into registers.
template <int kDim>
__device__ inline std::conditional_t<kDim == 256, Output, const Output&> in_job(const Output& output) {
  if constexpr (kDim < 256) {
    return output;
  } else {
    Output to = output;
    asm volatile("" : "+l"(to.half.data), "+l"(to.whole.data), "+l"(to.carry.data));
    return to;
  }
}

// Epilogue: stores a warp's 16 rows of a gradient as bf16, staged in shared memory. If `merging` (see is_merging), it
// writes to global memory directly: it adds a carry, writes f32, or stores a part of a split list.
template <bool merging, int kDim, int kRows, int kConsumers>
__device__ inline void write_gradient(const Sums<kDim>& sums, float factor, const Output& whole, const Output& partial,
                                      const Job<kConsumers>& job, const WarpRows& rows, int dim,
                                      const StagedRows<kDim, kRows>& staged) {
  if constexpr (!merging) {
    staged.store(sums, {factor, factor});
    __syncwarp();
    staged.copy_out(whole, dim, rows);
    __syncwarp();
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = rows.row(half);
      if (job.slot < 0)
        write_row<kDim>(sums, half, factor, 1.0f, in_job<kDim>(whole), rows.token(row), rows.head, dim,
                        rows.exists(row));
      else
        write_row<kDim>(sums, half, 1.0f, 0.0f, in_job<kDim>(partial), row_of_slot(job) + row - job.row, 0, dim,
                        rows.exists(row));
    }
  }
}

// Processes all tiles of a job. whole_loop: runs tiles without masked pairs in a separate, faster loop; set it if the
// registers suffice for both loops.
template <bool whole_loop, class Consumer, class Job>
__device__ inline void take_tiles(Consumer& c, const Job& job, int row) {
  constexpr int kParts = Consumer::kParts;
  while (c.marks >= 0) {
    if constexpr (whole_loop)
      while (all_whole<kParts>(c.marks, c.consumer)) c.template next_tile<false>(job, row);
    if (c.marks < 0) break;
    if (any_wanted<kParts>(c.marks, c.consumer))
      c.template next_tile<true>(job, row);
    else
      c.pass_tile();
  }
}

}  // namespace ring::cuda::sm90
