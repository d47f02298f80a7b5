#pragma once
// Splits lists that are too long for one thread block.

#include <algorithm>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_scan.cuh>

#include "core/cuda/check.h"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/kernel.h"

namespace ring::cuda {

// A list is split if it is longer than kLongest times the mean list, than half an SM's share of a section's entries,
// and than kShortestCut. It follows that fewer than half of the lists are split, that these have fewer parts than there
// are lists, and that splitting adds at most one part per two lists.
constexpr std::int32_t kLongest = 2, kShortestCut = 16;
constexpr int kListWarps = 4, kPlanThreads = 1024;

// Sizes of a list's parts: `longer` of the `count` parts have shorter + 1 entries, the others `shorter`.
struct Parts {
  std::int32_t count, shorter, longer;
};
__device__ inline Parts parts_of(std::int32_t length, std::int32_t longest) {
  if (length <= longest) return {1, length, 0};
  const std::int32_t count = (length - 1) / longest + 1;
  return {count, length / count, length % count};
}

// Numbers of items, of slots for partial sums, and of split lists, for one list or a range of lists.
struct Cuts {
  std::int32_t items, slots, split_lists;
  __device__ Cuts operator+(const Cuts& o) const {
    return {items + o.items, slots + o.slots, split_lists + o.split_lists};
  }
};
__device__ inline Cuts cuts_of(const Parts& p) { return {p.count, p.count > 1 ? p.count : 0, p.count > 1}; }

// Returns the length of the longest list that is not split. work: entries of all lists; of_section: entries of one
// section's lists, which run at the same time.
__device__ inline std::int32_t longest_uncut(std::int64_t work, std::int64_t lists, std::int64_t of_section,
                                             int processors) {
  const std::int64_t mean = (work + lists - 1) / lists, share = of_section / (2 * processors);
  const std::int64_t limit = share > kLongest * mean ? share : kLongest * mean;
  return static_cast<std::int32_t>(limit > kShortestCut ? limit : kShortestCut);
}

// Calls place(list, prefix) for every list, where prefix is the sum of `of` over all earlier lists. Returns the total.
// Like all planning, it runs in one thread block. Each warp has a contiguous range of lists, and first computes the sum
// of its range for the warps after it.
template <class T, class Of, class PlaceOf>
__device__ T sums_before(int lists, const Of& of, const PlaceOf& place) {
  constexpr int kWarps = kPlanThreads / kWarp;
  using BlockScan = cub::BlockScan<T, kPlanThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  using WarpScan = cub::WarpScan<T>;
  __shared__ typename BlockScan::TempStorage of_block;
  __shared__ typename WarpScan::TempStorage of_warp[kWarps];
  const auto plus = [](const T& a, const T& b) { return a + b; };
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int each = ((lists - 1) / kPlanThreads + 1) * kWarp, first = warp * each, end = min(lists, first + each);
  T mine{}, before{}, all{};
  for (int list = first + lane; list < end; list += kWarp) mine = mine + of(list);
  BlockScan(of_block).ExclusiveScan(mine, before, T{}, plus, all);
  before = cub::ShuffleIndex<kWarp>(before, 0, ~0u);
  for (int base = first; base < end; base += kWarp) {
    const bool exists = base + lane < end;
    T here{}, round{};
    WarpScan(of_warp[warp]).ExclusiveScan(exists ? of(base + lane) : T{}, here, T{}, plus, round);
    if (exists) place(base + lane, before + here);
    before = before + round;
  }
  return all;
}

inline int processors(const ExecContext& ctx) {
  int count = 0;
  RING_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ctx.stream.device().index));
  return count;
}

}  // namespace ring::cuda
