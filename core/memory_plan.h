#pragma once
// Where blocks whose sizes and lifetimes are known beforehand lie in one slab: the less it takes, the better. Finding
// the least is NP-hard; several greedy orders are tried, and the best one is improved as long as that is cheap.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace ring {

// Times count events (an allocation or a free), so that no two are alike.
struct BlockLife {
  std::size_t bytes = 0;
  std::uint32_t begin = 0, end = kOpen;  // lives at begin <= t < end
  static constexpr std::uint32_t kOpen = std::numeric_limits<std::uint32_t>::max();

  bool escapes() const { return end == kOpen; }  // nobody knows until when: not in the slab
  bool operator==(const BlockLife&) const = default;
};

struct MemoryPlan {
  std::vector<std::size_t> offsets;  // of each block; kNowhere for those that escape
  std::size_t bytes = 0;             // of the slab
  std::size_t live_peak = 0;         // most bytes that are alive at once, rounded up to `align` each: no plan has less
  static constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();
};

// blocks: in the order of their begins. Offsets are multiples of `align`.
MemoryPlan plan_memory(const std::vector<BlockLife>& blocks, std::size_t align);

}  // namespace ring
