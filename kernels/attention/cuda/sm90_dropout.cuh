#pragma once
// Dropout for the Hopper kernels: decides which accumulator elements of a lane (WGMMA layout, wgmma.cuh) are dropped.
// dropout_bits(row key, column key) is symmetric (dropout.h), so a (query, key) pair gets the same bits whether queries
// or keys are the stationary operand.

#include "kernels/attention/cuda/dropout.cuh"
#include "kernels/attention/cuda/sm90_rows.cuh"

namespace ring::cuda::sm90 {

// Dropout keys (dropout.h) that a lane needs. load_rows() loads the keys of the lane's two rows; `row` is the first of
// the warp's 16 rows. load_columns() loads the keys of a tile's columns, and columns(n) returns those of columns
// 8n + 2t and 8n + 2t + 1, with t = lane % 4. tokens: N, the stride between heads in the row keys [Hq,N].
template <Stationary owner>
struct TileDropout;
template <>
struct TileDropout<Stationary::q> {
  std::uint32_t rows[2], first[kMaxParts], step;

  template <int kConsumers>
  __device__ void load_rows(const DropoutParams& p, std::int64_t tokens, const Job<kConsumers>& job, int row) {
    const WarpRows own(job, row, job.segment.q_row);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int mine = own.row(half);
      rows[half] = own.exists(mine) ? p.keys[own.head * tokens + own.token(mine)] : 0;
    }
  }
  __device__ void load_columns(const DropoutParams&, std::int64_t, const HeadSegment& s, const TileCoord& tile) {
#pragma unroll
    for (int part = 0; part < kMaxParts; ++part) first[part] = column_key(s, tile.column[part] + lane() % 4 * 2);
    step = dropout_column_key(s.rate);
  }
  __device__ uint2 columns(int n) const {
    const std::uint32_t key = first[n / 8] + static_cast<std::uint32_t>(n % 8 * 8) * step;
    return {key, first[n / 8] + static_cast<std::uint32_t>(n % 8 * 8 + 1) * step};
  }
};
template <>
struct TileDropout<Stationary::kv> {
  std::uint32_t rows[2], mine[2];  // mine: dropout keys of the tile's queries 2 * lane() and 2 * lane() + 1

  template <int kConsumers>
  __device__ void load_rows(const DropoutParams&, std::int64_t, const Job<kConsumers>& job, int row) {
#pragma unroll
    for (int half = 0; half < 2; ++half) rows[half] = column_key(job.segment, row + lane() / 4 + 8 * half);
  }
  // Queries that are out of range have P = 0 and use the key of a valid query.
  __device__ void load_columns(const DropoutParams& p, std::int64_t tokens, const HeadSegment& s,
                               const TileCoord& tile) {
    const std::uint32_t* keys = p.keys + query_head(tile) * tokens + s.q_row;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int j = min(max(tile.column[0] + 2 * lane() + i, s.q_first), s.q_end - 1);
      mine[i] = keys[std::int64_t{j} * s.rate];
    }
  }
  __device__ uint2 columns(int n) const {
    const int from = 4 * n + lane() % 4;
    return {__shfl_sync(0xffffffffu, mine[0], from), __shfl_sync(0xffffffffu, mine[1], from)};
  }
};

// Returns x, multiplied by `factor` if the pair is dropped. Uses a predicated multiply: a select would run on the ALU,
// which is already busy with the dropout bits.
template <int factor>
__device__ inline float times_if_dropped(float x, std::uint32_t bits, std::uint32_t threshold) {
  asm("{ .reg .pred d; setp.lo.u32 d, %1, %2; @d mul.f32 %0, %0, %3; }"
      : "+f"(x)
      : "r"(bits), "r"(threshold), "f"(static_cast<float>(factor)));
  return x;
}

// Dropout policies of the forward. They return `weight`, which is accumulator element i of P, or 0 if it is dropped.
struct KeepsAll {
  __device__ float operator()(int, float weight) const { return weight; }
};
struct Keeps {
  const TileDropout<Stationary::q>& of;
  std::uint32_t threshold;
  __device__ float operator()(int i, float weight) const {
    const uint2 columns = of.columns(i / 4);
    return times_if_dropped<0>(weight, dropout_bits(of.rows[i / 2 % 2], i % 2 ? columns.y : columns.x), threshold);
  }
};

// Marks dropped elements of P by making them negative.
template <Stationary owner, int kColumns>
__device__ inline void mark_dropped(Sums<kColumns>& w, const TileDropout<owner>& of, std::uint32_t threshold) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const uint2 columns = of.columns(n);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t bits = dropout_bits(of.rows[i / 2], i % 2 ? columns.y : columns.x);
      w[4 * n + i] = times_if_dropped<-1>(w[4 * n + i], bits, threshold);
    }
  }
}
// Like pack_bf16, but maps negative numbers to 0.
__device__ inline std::uint32_t pack_positive_bf16(float first, float second) {
  std::uint32_t r;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first));
  return r;
}
// Converts marked P to bf16 A-operand fragments in which dropped elements are 0.
template <int kColumns>
__device__ inline void as_kept_fragments(OperandA<kColumns>& p, const Sums<kColumns>& w) {
#pragma unroll
  for (int k = 0; k < p.kSteps; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) p.data[k][i] = pack_positive_bf16(w[8 * k + 2 * i], w[8 * k + 2 * i + 1]);
}

}  // namespace ring::cuda::sm90
