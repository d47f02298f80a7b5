#pragma once
// f32 accumulators of dq. Thread blocks that own keys add tiles of 64 queries to them, taking turns in a fixed order.
// If results need not be deterministic, the first block stores and the others add in any order. Rows of the same
// residue modulo the rate are contiguous: row n of the tensor is row n % rate * (N / rate) + n / rate here. Tiles start
// at a head segment's first query or, with lists, at position 0 of the segment.

#include "kernels/attention/cuda/tile_schedule.cuh"

namespace ring::cuda {

constexpr int kQueryTile = 64, kSumColumns = 64;

// Returns the slot of a chunk of 8 columns in a tile's row: a swizzle without bank conflicts for stores from registers
// to shared memory.
__device__ inline int swizzled_piece(int piece, int row) { return piece ^ (row & 3); }

class QuerySums {
 public:
  // cleared: true for kernels that add in any order; zeroes the accumulators instead of counting turns.
  QuerySums(const AttentionBackward&, bool cleared, const ExecContext&);
  // Writes dq = scale * sums + carry, with scale / (1 - dropout rate) if there is dropout. Accumulators that no block
  // added to count as 0.
  void write_dq(const AttentionBackward&, const BranchPass&, const ExecContext&) const;

  float* sums_data() const { return sums_.data<float>(); }  // [Hq * parts of 64 columns,N,64]
  // Turn counters [Hq * parts,N], one per tile, at the tile's first row: how many blocks have added to the tile
  // (deterministic), or whether any block has (any order). Null if the accumulators were cleared.
  unsigned* turns_data() const { return reinterpret_cast<unsigned*>(device_data<float>(turns_)); }

 private:
  std::int64_t parts_;
  Tensor sums_, turns_;
};

}  // namespace ring::cuda
