#pragma once
// The rows that a thread block owns, the columns that it streams, and where its results are written.

#include "kernels/attention/cuda/tile_schedule.cuh"

namespace ring::cuda {

// A half-open range [first, end) of valid rows.
struct Range {
  int first, end;
  __device__ bool has(int row) const { return row >= first && row < end; }
  __device__ Range from(int row) const { return {first - row, end - row}; }
};

// Destination of accumulator rows, `stride` elements apart.
struct RowsOut {
  __nv_bfloat16* half;  // destination of bf16 results, else null
  float* whole;         // destination of f32 results, else null
  const float* carry;   // added to the rows; null if there is none
  std::int64_t stride, carry_stride;
  Range exist;
  int columns;
};

// State of a thread block. Kept in shared memory because the main loops have no registers to spare.
template <Stationary owner, int kWarps>
struct CtaState {
  HeadSegment segment;
  ColumnStream columns;
  TileBounds reach[kWarps];  // columns that the rows of each warp see
  int head, row;             // row: first row of the thread block
  int streamed_head;         // first of the heads that are streamed
  std::int64_t part_row;     // first row in the partial sums of split lists; -1 if the list is not split

  // Initializes the state from the schedule. All threads must call it. A warp has kOwn rows, which start at `in_block`;
  // group: query heads per KV head. Returns false if the thread block has no valid row.
  template <int kRows, int kOwn>
  __device__ bool open(const TileSchedule& work, const BranchPass& pass, int group, int step, int in_block) {
    const CtaCoord at = work[blockIdx.x];
    const HeadSegment s(pass, at.piece, pass.offset(owner == Stationary::kv ? at.head : at.head / group));
    const int block = first_row<owner>(work, s, at, kRows);
    const int first = max(block, s.first<owner>()), end = min(block + kRows, s.end<owner>());
    if (first >= end) return false;
    if (threadIdx.x == 0) {
      segment = s;
      columns = ColumnStream(work, at, s.bounds<owner>(first, end), step);
      head = at.head, row = block, part_row = -1;
      streamed_head = owner == Stationary::kv ? head * group : head / group;
      if (at.slot >= 0) part_row = std::int64_t{at.slot} * kListRows + at.block * kRows % kListRows;
    }
    if (threadIdx.x % 32 == 0) {
      const int own = max(first, block + in_block), own_end = min(end, block + in_block + kOwn);
      reach[threadIdx.x / 32] = own < own_end ? s.bounds<owner>(own, own_end) : TileBounds{};
    }
    __syncthreads();
    return true;
  }

  // Return the tensor row of the thread block's row `in_block`, and of the streamed column `column`.
  __device__ std::int64_t own_row(int in_block) const {
    return (owner == Stationary::q ? segment.q_row : segment.k_row) + std::int64_t{row + in_block} * segment.rate;
  }
  __device__ std::int64_t streamed_row(int column) const {
    return (owner == Stationary::q ? segment.k_row : segment.q_row) + std::int64_t{column} * segment.rate;
  }
  // Return the valid rows, relative to the thread block's row `in_block`, and the valid columns, relative to `column`.
  __device__ Range own_range(int in_block) const {
    return Range{segment.first<owner>(), segment.end<owner>()}.from(row + in_block);
  }
  __device__ Range streamed_range(int column) const {
    constexpr Stationary other = owner == Stationary::q ? Stationary::kv : Stationary::q;
    return Range{segment.first<other>(), segment.end<other>()}.from(column);
  }

  // Returns the destination of columns [column, dim) of the thread block's rows from `in_block` on: in `parts` if the
  // list is split, else in the tensor. parts: partial sums, in rows of `dim` columns.
  __device__ RowsOut out(const Output& to, float* parts, int in_block, int column, int dim) const {
    RowsOut r{};
    r.exist = own_range(in_block), r.columns = dim - column;
    if (owner == Stationary::kv && part_row >= 0) {
      r.whole = parts + (part_row + in_block) * dim + column, r.stride = dim;
      return r;
    }
    const std::int64_t at = own_row(in_block), rate = segment.rate;
    if (to.half.data) r.half = to.half.at(at, head) + column, r.stride = to.half.row * rate;
    if (to.whole.data) r.whole = to.whole.at(at, head) + column, r.stride = to.whole.row * rate;
    if (to.carry.data) r.carry = to.carry.at(at, head) + column, r.carry_stride = to.carry.row * rate;
    return r;
  }
};

}  // namespace ring::cuda
