#include "kernels/attention/seen_keys.h"

#include <algorithm>

#include "kernels/attention/blocks.h"

namespace ring {

SeenKeys::SeenKeys(const Pattern& pattern) : pattern_(pattern), passes_(passes_of(pattern)) {}

void SeenKeys::add(std::int32_t kv_head, std::int32_t query, std::int32_t length, std::vector<KeyRun>& to) const {
  for (const BranchPass& pass : passes_)
    pass.listed ? add_blocks(kv_head, query, length, to) : add_pass(pass, kv_head, query, length, to);
}

std::optional<std::int64_t> SeenKeys::max_needed_keys() const {
  if (!pattern_.pools.empty()) return {};  // every earlier key may be in a pool that the query sees
  std::int64_t max = 0;
  for (const BranchPass& pass : passes_) {
    if (pass.window == 0) return {};
    max = std::max(max, std::int64_t{pass.window - 1} * pass.rate + 1);
  }
  return max;
}

void SeenKeys::add_pass(const BranchPass& pass, std::int32_t kv_head, std::int32_t query, std::int32_t length,
                        std::vector<KeyRun>& to) const {
  const std::int32_t start = query / pass.segment * pass.segment, p = query - start;
  const std::int32_t end = std::min(length - start, pass.segment), sinks = std::max(pattern_.sinks - start, 0);
  const HeadSegment segment(pass, {start, p, p + 1, start, 0, end, sinks}, pass.offset(kv_head));
  if (segment.q_first == segment.q_end) return;  // this head does not sample the query
  const Columns c = segment.columns<Stationary::q>(segment.q_first);
  const std::int32_t hole = std::clamp(c.hole, c.first, c.end), hole_end = std::clamp(c.hole_end, hole, c.end);
  for (const auto& [first, last] : {std::pair(c.first, hole), std::pair(hole_end, c.end)})
    if (first < last) to.push_back({segment.k_row + first * segment.rate, last - first, segment.rate});
}

void SeenKeys::add_blocks(std::int32_t kv_head, std::int32_t query, std::int32_t length,
                          std::vector<KeyRun>& to) const {
  const BlockPattern& blocks = *pattern_.blocks;
  const std::int32_t own = query / blocks.block(), keys = pattern_.causal ? std::min(query + 1, length) : length;
  add_kept_blocks(
      blocks.block(), keys, [&](std::int32_t k) { return blocks.keeps(kv_head, own, k); }, to);
}

}  // namespace ring
