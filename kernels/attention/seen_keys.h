#pragma once
// The keys that one query sees, for KV caches, costs and pictures.

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/attention/head_segment.h"

namespace ring {

// `count` positions: first, first + stride, ...
struct KeyRun {
  std::int32_t first = 0, count = 0, stride = 1;
};

// Appends to `to` the runs of the first `keys` keys that are in kept blocks. keeps(block index) returns true if a block
// is kept; adjacent kept blocks form one run.
template <class Keeps>
void add_kept_blocks(std::int32_t block, std::int32_t keys, const Keeps& keeps, std::vector<KeyRun>& to) {
  for (std::int32_t k = 0; k * block < keys;) {
    std::int32_t end = k;
    while (end * block < keys && keeps(end)) ++end;
    if (end > k) to.push_back({k * block, std::min(end * block, keys) - k * block, 1});
    k = std::max(k + 1, end);
  }
}

// The keys, except pools, that queries of one document see. Positions count from the start of the document, which is
// also the start of its packed row. The pattern must outlive this object.
class SeenKeys {
 public:
  explicit SeenKeys(const Pattern&);

  // Appends to `to` the runs of keys before position `length` that the query sees in this KV head. Runs of one branch
  // do not overlap; a key occurs once for each branch that contains it.
  void add(std::int32_t kv_head, std::int32_t query, std::int32_t length, std::vector<KeyRun>& to) const;

  // Returns how many of the newest keys, besides sinks, a causal query may need, directly or through pools; nullopt
  // if the query may need all keys.
  std::optional<std::int64_t> max_needed_keys() const;

 private:
  void add_pass(const BranchPass&, std::int32_t kv_head, std::int32_t query, std::int32_t length,
                std::vector<KeyRun>& to) const;
  void add_blocks(std::int32_t kv_head, std::int32_t query, std::int32_t length, std::vector<KeyRun>& to) const;

  const Pattern& pattern_;
  std::vector<BranchPass> passes_;
};

}  // namespace ring
