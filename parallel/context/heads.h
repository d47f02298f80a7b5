#pragma once
// Attention over some of the KV heads, with the query heads that read them.

#include <map>

#include "parallel/context/cache.h"

namespace ring {

// Returns the call over these heads alone, with views of its tensors and with their part of its selection. The pattern
// is that of these heads.
Attention of_heads(const Attention&, KvHeads, const Pattern&, const ExecContext&);
AttentionBackward of_heads(const AttentionBackward&, KvHeads, const Pattern&, const ExecContext&);

// Their part of a selection, for the pattern as they see it; none where that does not select.
BlockSelection of_heads(const BlockSelection&, KvHeads, const Pattern&, const ExecContext&);

// The KV heads that a ring turns with at a time, a divisor of all: the most whose keys' gradients of one rank take at
// most so many bytes in f32, and at least 1; all of them where a pattern needs few keys of other ranks. The same on
// every rank.
std::int64_t heads_at_once(const ContextShards&, const Pattern&, std::int64_t kv_heads, std::int64_t dim,
                           std::int64_t bytes);

// A pattern as groups of its KV heads see it, made once. References: as PlanCache's.
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
