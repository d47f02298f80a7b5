#pragma once
// Cache of plans, which depend on the shards and the pattern. Plans are kept as long as the same shards are used.

#include <functional>
#include <list>
#include <memory>

#include "autograd/context_exchange.h"
#include "kernels/attention/pattern.h"

namespace ring {

template <class Plan>
class PlanCache {
 public:
  // Returns the plan for these shards, calling make() if there is none yet. The reference is valid until get() is
  // called with different shards, and only while the caller holds the pattern.
  const Plan& get(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern, std::int64_t kv_heads,
                  const std::function<Plan()>& make) {
    if (shards != shards_) plans_.clear();
    shards_ = shards;
    for (const Entry& e : plans_)
      if (e.kv_heads == kv_heads && same_pairs(e.pattern, pattern)) return e.plan;
    // Drops plans whose pattern nobody else holds: their layers now have a different pattern.
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
