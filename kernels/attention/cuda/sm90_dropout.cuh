#pragma once
// Dropout for the Hopper kernels: decides which accumulator elements of a lane (WGMMA layout, wgmma.cuh) are dropped.
// dropout_bits(row key, column key) is symmetric (dropout.h), so a (query, key) pair gets the same bits whether queries
// or keys are the stationary operand.

#include "kernels/attention/cuda/dropout.cuh"
#include "kernels/attention/cuda/sm90_rows.cuh"

namespace ring::cuda::sm90 {

// Dropout keys (dropout.h) of a tile's columns in shared memory. Lane t of each quad reads columns 8n + 2t and
// 8n + 2t + 1 for all n. The dropout keys of these columns are therefore contiguous in memory. Four unused words after
// the columns of each t avoid bank conflicts.
template <int kColumns>
struct ColumnKeys {
  static constexpr int kLane = kColumns / 4 + 4;
  alignas(16) std::uint32_t keys[4 * kLane];

  __device__ std::uint32_t& at(int column) { return keys[column % 8 / 2 * kLane + column / 8 * 2 + column % 2]; }
  // Returns the dropout keys of this lane's columns, two in each element.
  __device__ const std::uint64_t* of_lane() const {
    return reinterpret_cast<const std::uint64_t*>(keys + lane() % 4 * kLane);
  }
  // Computes and stores the dropout keys of a tile whose columns are attention keys. Called by a warp.
  __device__ void store(const HeadSegment& s, const TileCoord& tile) {
#pragma unroll
    for (int i = 0; i < kColumns / 32; ++i) {
      const int column = lane() + 32 * i;
      at(column) = column_key(s, tile.column[column / kPart] + column % kPart);
    }
  }
};

// The dropout keys that a lane needs. load_rows() loads those of the lane's two rows: `row` is the first of the warp's
// 16 rows, and `tokens` is N, the stride between heads in DropoutParams::keys. use() selects a tile. columns(n) then
// returns the dropout keys of the tile's columns 8n + 2t and 8n + 2t + 1, with t = lane % 4.
template <Stationary owner>
struct TileDropout {
  std::uint32_t rows[2];
  const std::uint64_t* of_columns;

  template <int kConsumers>
  __device__ void load_rows(const DropoutParams& p, std::int64_t tokens, const Job<kConsumers>& job, int row) {
    const WarpRows own(job, row, job.segment.q_row);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int mine = own.row(half);
      if constexpr (owner == Stationary::kv)
        rows[half] = column_key(job.segment, mine);
      else
        rows[half] = own.exists(mine) ? p.keys[own.head * tokens + own.token(mine)] : 0;
    }
  }
  template <int kColumns>
  __device__ void use(const ColumnKeys<kColumns>& keys) {
    of_columns = keys.of_lane();
  }
  __device__ uint2 columns(int n) const {
    const std::uint64_t both = of_columns[n];  // one load of 64 bits: the compiler would not merge two of 32 bits
    return make_uint2(static_cast<std::uint32_t>(both), static_cast<std::uint32_t>(both >> 32));
  }
};

// Replaces TileDropout<Stationary::kv> where shared memory has no space for the dropout keys of queries. A lane loads
// those of the tile's queries 2 * lane() and 2 * lane() + 1, and columns() reads them from other lanes by shuffles.
struct ShuffledDropout : TileDropout<Stationary::kv> {
  std::uint32_t mine[2];

  // Queries that are out of range have P = 0 and use the dropout key of a valid query.
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

// Dropout policies of the forward. Each converts accumulator elements i and i + 1 of P to bf16. KeepsAll is for calls
// without dropout; Keeps replaces dropped elements by 0.
struct KeepsAll {
  __device__ std::uint32_t operator()(int, float first, float second) const { return pack_bf16(first, second); }
};
struct Keeps {
  const TileDropout<Stationary::q>& of;
  std::uint32_t threshold;
  __device__ std::uint32_t operator()(int i, float first, float second) const {
    const uint2 columns = of.columns(i / 4);
    const std::uint32_t row = of.rows[i / 2 % 2];
    return pack_bf16(times_if_dropped<0>(first, dropout_bits(row, columns.x), threshold),
                     times_if_dropped<0>(second, dropout_bits(row, columns.y), threshold));
  }
};

// Marks dropped elements of P by making them negative.
template <int kColumns, class Dropout>
__device__ inline void mark_dropped(Sums<kColumns>& w, const Dropout& of, std::uint32_t threshold) {
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
// Returns 1 for positive normal numbers and 0 for negative ones. Uses the FMA units; a comparison would run on the ALU.
__device__ inline float is_positive(float x) { return __saturatef(x * 0x1p127f); }
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
