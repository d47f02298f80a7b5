#pragma once
// Enumerates the entries of one list: the blocks that a rule or a selection keeps for a tile of the owner.

#include "kernels/attention/blocks.h"
#include "kernels/cuda/device/reduce.cuh"

namespace ring::cuda {

struct ListWalk {
  Stationary owner;
  bool causal, whole;  // whole: true if the rule's blocks have 128 positions, false if 64
  int halves, tiles;   // number of blocks of 64 and of 128 positions
  int first = 0;       // first tile of the other side that may have entries
};

// Returns the two entries of an owner tile for columns [128 pair, 128 pair + 128); an entry is 0 if nothing is kept.
// keeps(row, column) takes block numbers of the owner's side and of the other side.
template <class Keeps>
__device__ int2 entries_of(const ListWalk& w, const Keeps& keeps, int tile, int pair) {
  const bool all = w.whole && keeps(tile, pair);
  if (w.whole && tile != pair && 2 * max(tile, pair) + 1 < w.halves)  // the pair has neither the diagonal nor the end
    return all ? int2{list_entry(2 * pair, BlockCoverage::wholly, BlockCoverage::wholly),
                      list_entry(2 * pair + 1, BlockCoverage::wholly, BlockCoverage::wholly)}
               : int2{0, 0};
  const auto kept = [&](int row, int column) {
    if (row >= w.halves || column >= w.halves) return BlockCoverage::none;
    const BlockCoverage most = coverage_of(w.owner, row, column, w.causal);
    return most != BlockCoverage::none && (w.whole ? all : keeps(row, column)) ? most : BlockCoverage::none;
  };
  const auto entry = [&](int column) {
    const BlockCoverage first = kept(2 * tile, column), second = kept(2 * tile + 1, column);
    return first == BlockCoverage::none && second == BlockCoverage::none ? 0 : list_entry(column, first, second);
  };
  return {entry(2 * pair), entry(2 * pair + 1)};
}

// Writes the entries of a tile to `out` in ascending order unless `out` is null. Returns the number of entries. Called
// by one warp.
template <class Keeps>
__device__ int walk_list(const ListWalk& w, const Keeps& keeps, int tile, std::int32_t* out, int lane) {
  const int first = w.causal && w.owner == Stationary::kv ? max(tile, w.first) : w.first;
  const int end = w.causal && w.owner == Stationary::q ? min(tile + 1, w.tiles) : w.tiles;
  const unsigned below = (1u << lane) - 1;
  int count = 0;
  for (int base = first; base < end; base += kWarp) {
    const int2 e = base + lane < end ? entries_of(w, keeps, tile, base + lane) : int2{0, 0};
    const unsigned a = __ballot_sync(~0u, e.x != 0), b = __ballot_sync(~0u, e.y != 0);
    if (out) {
      const int place = count + __popc(a & below) + __popc(b & below);
      if (e.x != 0) out[place] = e.x;
      if (e.y != 0) out[place + (e.x != 0)] = e.y;
    }
    count += __popc(a) + __popc(b);
  }
  return count;
}

}  // namespace ring::cuda
