#pragma once
// What depends on who holds what and on the pattern is made once and kept as long as the same shards are worked on.

#include <functional>
#include <list>
#include <memory>

#include "autograd/context_exchange.h"
#include "kernels/attention/pattern.h"

namespace ring {

template <class Plan>
class PlanCache {
 public:
  // The reference is good until other shards are asked for, and while the caller has the pattern.
  const Plan& get(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern, std::int64_t kv_heads,
                  const std::function<Plan()>& make) {
    if (shards != shards_) plans_.clear();
    shards_ = shards;
    for (const Entry& e : plans_)
      if (e.kv_heads == kv_heads && same_pairs(e.pattern, pattern)) return e.plan;
    // Blocks that nobody else holds are those of a pattern that has changed since.
    plans_.remove_if([](const Entry& e) { return e.pattern.blocks.use_count() == 1; });
    return plans_.emplace_back(Entry{pattern, kv_heads, make()}).plan;
  }

 private:
  struct Entry {
    Pattern pattern;
    std::int64_t kv_heads;
    Plan plan;
  };
  std::shared_ptr<const ContextShards> shards_;
  std::list<Entry> plans_;
};

}  // namespace ring
