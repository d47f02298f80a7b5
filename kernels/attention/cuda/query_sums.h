#pragma once
// Sums of dq in f32 that thread blocks which own keys add to, a tile of 64 queries at a time, one after the other (or,
// where bits need not repeat, in any order once the first one has stored).
// Samples of a segment lie together: row n of the tensor is row n % rate * (N / rate) + n / rate of the sums. Tiles
// start at a head segment's first query, or with lists at position 0 of the segment.

#include "kernels/attention/cuda/tile_schedule.cuh"

namespace ring::cuda {

constexpr int kQueryTile = 64, kSumColumns = 64;

// Where a piece of 8 columns of a tile's row lies: so sums get from registers to shared memory without bank conflicts.
__device__ inline int swizzled_piece(int piece, int row) { return piece ^ (row & 3); }

class QuerySums {
 public:
  // cleared: for those who add in any order and count no turns.
  QuerySums(const AttentionBackward&, bool cleared, const ExecContext&);
  // dq = scale sums + carry, scale over the share that dropout keeps; sums are 0 where nobody has added.
  void finish(const AttentionBackward&, const BranchPass&, const ExecContext&) const;

  float* sums_data() const { return sums_.data<float>(); }  // [Hq * parts of 64 columns,N,64]
  // [Hq * parts,N], at a tile's first row: how many have added to it; in any order, whether one has. Null: the sums
  // were cleared.
  unsigned* turns_data() const { return reinterpret_cast<unsigned*>(device_data<float>(turns_)); }

 private:
  std::int64_t parts_;
  Tensor sums_, turns_;
};

}  // namespace ring::cuda
