#pragma once
// Dropout in the CUDA kernels. A separate kernel generates the dropout keys of the query rows once per call. The
// dropout keys of attention keys are hashed anew for each tile. For a pair, the kernels then only compute the random
// bits, compare them and select, because accumulators are scaled once at the end, and delta is scaled in advance.

#include "kernels/attention/cuda/cta_state.cuh"

namespace ring::cuda {

struct DropoutParams {
  const std::uint32_t* keys = nullptr;  // dropout keys of the query rows, [Hq,N]; null if nothing is dropped
  std::uint32_t threshold = 0;
  float scale = 1;  // 1 / (1 - rate)
};
// `keys` is the result of dropout_keys(), which is an undefined tensor if the rate is 0.
DropoutParams dropout_params(const AttentionDropout&, const Tensor& keys);
Tensor dropout_keys(const AttentionDropout&, const Tensor& lse, const ExecContext&);

// Returns the dropout key of sample j of a head segment's keys.
__device__ inline std::uint32_t column_key(const HeadSegment& s, int j) {
  return dropout_column_key(s.position + j * s.rate);
}

// Decides which of a lane's accumulator elements (mma.sync layout) are dropped. Row keys belong to the accumulator's
// rows if queries are stationary, else to its columns.
template <Stationary owner, int kM, int kN>
struct LaneDropout;
template <int kM, int kN>
struct LaneDropout<Stationary::q, kM, kN> {
  std::uint32_t rows[kM][2];
  std::int32_t position, step;  // position of the lane's first column; step: distance between positions

  // Loads the dropout keys of the accumulator's rows. If queries are stationary, the keys are read from `keys`, which
  // starts at the warp's first row. Otherwise they are computed from the warp's first row in the head segment.
  __device__ void load(const std::uint32_t* keys, const HeadSegment& s, int, Range exist) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m * 16 + half * 8 + lane / 4;
        rows[m][half] = exist.has(row) ? keys[std::int64_t{row} * s.rate] : 0;
      }
  }
  // Prepares the dropout keys of a tile's columns. first: the tile's first column in the head segment. shared: row keys
  // of the tile's queries, used if keys are stationary.
  __device__ void stage(const HeadSegment& s, int first, const std::uint32_t*) {
    position = s.position + (first + static_cast<int>(threadIdx.x) % 4 * 2) * s.rate, step = s.rate;
  }
  __device__ std::uint32_t bits(int m, int n, int i) const {
    return dropout_bits(rows[m][i / 2], dropout_column_key(position + (n * 8 + i % 2) * step));
  }
};
template <int kM, int kN>
struct LaneDropout<Stationary::kv, kM, kN> {
  std::uint32_t rows[kM][2];
  const std::uint32_t* columns;

  __device__ void load(const std::uint32_t*, const HeadSegment& s, int row, Range) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) rows[m][half] = column_key(s, row + m * 16 + half * 8 + lane / 4);
  }
  __device__ void stage(const HeadSegment&, int, const std::uint32_t* shared) {
    columns = shared + static_cast<int>(threadIdx.x) % 4 * 2;
  }
  __device__ std::uint32_t bits(int m, int n, int i) const {
    return dropout_bits(columns[n * 8 + i % 2], rows[m][i / 2]);
  }
};

}  // namespace ring::cuda
