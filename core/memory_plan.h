#pragma once
// Plans the offsets of blocks with known sizes and lifetimes in one slab, which should be as small as possible. The
// minimum is NP-hard to find: several greedy orders are tried, and the best plan is improved as long as that is cheap.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace ring {

// Size and lifetime of a block. Times count events (allocations and frees), so all times are different.
struct BlockLife {
  std::size_t bytes = 0;
  std::uint32_t begin = 0, end = kOpen;  // alive at begin <= t < end
  static constexpr std::uint32_t kOpen = std::numeric_limits<std::uint32_t>::max();

  bool escapes() const { return end == kOpen; }  // freed at an unknown time: not placed in the slab
  bool operator==(const BlockLife&) const = default;
};

struct MemoryPlan {
  std::vector<std::size_t> offsets;  // offset of each block; kNowhere for blocks that escape
  std::size_t bytes = 0;             // size of the slab
  // Maximum bytes alive at once, each block rounded up to `align`: a lower bound for any plan.
  std::size_t live_peak = 0;
  static constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();
};

// `blocks` must be sorted by `begin`. Offsets are multiples of `align`.
MemoryPlan plan_memory(const std::vector<BlockLife>& blocks, std::size_t align);

}  // namespace ring
