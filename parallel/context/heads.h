#pragma once
// Attention over some of the KV heads, with the query heads that read them.

#include <map>

#include "parallel/context/cache.h"

namespace ring {

// Returns the call restricted to these KV heads: views of the tensors, and these heads' part of the selection.
// `pattern` must be the pattern of these heads.
Attention of_heads(const Attention&, KvHeads, const Pattern&, const ExecContext&);
AttentionBackward of_heads(const AttentionBackward&, KvHeads, const Pattern&, const ExecContext&);

// Returns these heads' part of a selection; empty if their pattern does not select.
BlockSelection of_heads(const BlockSelection&, KvHeads, const Pattern&, const ExecContext&);

// Returns `some`, counted from the first head of `own` instead of head 0. Requires that `own` contains `some`.
constexpr KvHeads counted_from(KvHeads own, KvHeads some) { return {some.first - own.first, some.count}; }

// Copies the selection of some heads into the selection for all `own` heads, whose lists have the same capacity
// (`room`). Heads that do not select leave their lists unused.
void add_heads(BlockSelection& all, KvHeads own, const BlockSelection&, KvHeads some, const ExecContext&);

// Returns how many KV heads a ring processes at a time: a divisor of kv_heads, the same on every rank. It is the
// largest number (at least 1) for which one rank's gradients of keys fit into `bytes` in f32. Returns all heads if the
// pattern needs few keys from other ranks.
std::int64_t heads_at_once(const ContextShards&, const Pattern&, std::int64_t kv_heads, std::int64_t dim,
                           std::int64_t bytes);

// Cache of a pattern restricted to groups of KV heads. References are valid as long as those returned by PlanCache.
class HeadPatterns {
 public:
  const Pattern& get(const std::shared_ptr<const ContextShards>& shards, const Pattern& all, std::int64_t kv_heads,
                     KvHeads some) {
    return by_first_[some.first].get(shards, all, kv_heads, [&] { return of_heads(all, some); });
  }

 private:
  std::map<std::int64_t, PlanCache<Pattern>> by_first_;
};

}  // namespace ring
