#include "inspect/referenced_keys.h"

#include <algorithm>
#include <vector>

#include "core/check.h"
#include "core/checked.h"
#include "parallel/context/plan.h"

namespace ring {
namespace {

constexpr int kOwn = 0, kBefore = 1;

// Returns shards of two pseudo-ranks: kOwn has the rank's rows, and kBefore has the other ranks' rows that precede any
// of them.
ContextShards own_and_before(const ContextLayout& layout, int rank) {
  ContextShards s{.documents = {{.count = narrow<std::int32_t>(layout.length())}}, .rows_by_rank = {{}, {}}};
  const auto hold = [&](int who, std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    const auto first = narrow<std::int32_t>(s.tokens(who)), global = narrow<std::int32_t>(begin);
    s.rows_by_rank[static_cast<std::size_t>(who)].push_back({first, global, narrow<std::int32_t>(end - begin)});
  };
  const ContextShards all = layout.shards(rank, 1, s.documents);
  std::int64_t at = 0;
  for (const LocalRows& h : all.rows_by_rank[static_cast<std::size_t>(rank)]) {
    hold(kBefore, at, h.global);
    at = h.global + h.count;
    hold(kOwn, h.global, at);
  }
  return s;
}

// Marks the keys of kBefore that the rank's queries of one KV head need. Returns the number of marked keys.
double mark_needed(const ContextShards& shards, Pattern pattern, std::int64_t kv_head, std::vector<char>& marks) {
  pattern.pools.clear();
  const KeyRequest need = needed_keys(shards, kOwn, kBefore, of_heads(pattern, {kv_head, 1}), 1);
  for (const RowCopy& c : need.copies)
    for (std::int32_t i = 0; i < c.count; ++i) marks[static_cast<std::size_t>(c.row + i * c.stride)] = 1;
  return static_cast<double>(need.row_heads(1));
}

// Counts the keys of one rank. by_any is a mean over the slices, by_head a mean over the heads.
ReferencedKeys keys_of_rank(const ContextShards& shards, const Pattern& pattern, std::int64_t kv_heads,
                            std::int64_t slices) {
  ReferencedKeys keys{.before = static_cast<double>(shards.tokens(kBefore))};
  const std::int64_t heads = kv_heads / slices;
  for (std::int64_t s = 0; s < slices; ++s) {
    std::vector<char> marks(static_cast<std::size_t>(shards.tokens(kBefore)));
    for (std::int64_t h = s * heads; h < (s + 1) * heads; ++h) keys.by_head += mark_needed(shards, pattern, h, marks);
    keys.by_any += static_cast<double>(std::ranges::count(marks, 1));
  }
  keys.by_head /= static_cast<double>(kv_heads), keys.by_any /= static_cast<double>(slices);
  return keys;
}

}  // namespace

ReferencedKeys referenced_keys(const Pattern& pattern, std::int64_t kv_heads, std::int64_t slices,
                               const ContextLayout& layout) {
  RING_CHECK(kv_heads % slices == 0, "referenced keys: ", slices, " slices do not divide ", kv_heads, " KV heads");
  ReferencedKeys sum;
  for (int r = 0; r < layout.ranks(); ++r) {
    const ReferencedKeys rank = keys_of_rank(own_and_before(layout, r), pattern, kv_heads, slices);
    sum.before += rank.before, sum.by_head += rank.by_head, sum.by_any += rank.by_any;
  }
  return sum;
}

}  // namespace ring
