#pragma once
// Which keys one query sees: what a cache of keys, costs and pictures ask of a pattern.

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/attention/head_segment.h"

namespace ring {

// Positions first, first + stride, ..
struct KeyRun {
  std::int32_t first = 0, count = 0, stride = 1;
};

// Adds the runs of the first `keys` keys whose blocks are kept: blocks that lie side by side are one run.
template <class Keeps>
void add_kept_blocks(std::int32_t block, std::int32_t keys, const Keeps& keeps, std::vector<KeyRun>& to) {
  for (std::int32_t k = 0; k * block < keys;) {
    std::int32_t end = k;
    while (end * block < keys && keeps(end)) ++end;
    if (end > k) to.push_back({k * block, std::min(end * block, keys) - k * block, 1});
    k = std::max(k + 1, end);
  }
}

// The keys that queries of one document see, pools not among them. The document starts its row.
class SeenKeys {
 public:
  explicit SeenKeys(const Pattern&);

  // Adds the runs of keys before `length` that a query sees, as this KV head has them: each key once for every branch
  // that has it. A run of one branch overlaps no other run of that branch.
  void add(std::int32_t kv_head, std::int32_t query, std::int32_t length, std::vector<KeyRun>& to) const;

  // How many of the newest keys, beside the sinks, a causal query may see, in pools or by themselves; none: all.
  std::optional<std::int64_t> reach() const;

 private:
  void add_pass(const BranchPass&, std::int32_t kv_head, std::int32_t query, std::int32_t length,
                std::vector<KeyRun>& to) const;
  void add_blocks(std::int32_t kv_head, std::int32_t query, std::int32_t length, std::vector<KeyRun>& to) const;

  const Pattern& pattern_;
  std::vector<BranchPass> passes_;
};

}  // namespace ring
