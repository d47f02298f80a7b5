#include "model/attention/pools/settings.h"

#include <algorithm>

#include "core/check.h"
#include "core/checked.h"
#include "model/attention/variant_settings.h"

namespace ring {

bool learns_pools(const AttentionConfig& c) { return c.pooling == Pooling::learned && !c.pools.empty(); }

namespace {

void validate_pools(const AttentionConfig& c, std::vector<SettingProblem>& errors) {
  for (std::size_t i = 1; i < c.pools.size(); ++i)
    if (c.pools[i] <= c.pools[i - 1])
      errors.push_back(str("pools: [", list_text(c.pools), "]: sizes must increase, as in pools: [16, 64]"));
  if (c.pooling == Pooling::learned && c.pools.empty())
    errors.push_back(foreign_setting_problem(
        "pools", "pooling", foreign_setting("pooling", "learned", "sections with pools", "one without")));
  if (c.pool_gates && c.pools.empty())
    errors.push_back(foreign_setting_problem(
        "pools", "pool_gates", foreign_setting("pool_gates", "true", "sections with pools", "one without")));
}

void add_pools(const AttentionConfig& c, Pattern& p) {
  for (const std::int64_t size : c.pools) p.pools.push_back(narrow<std::int32_t>(size));
}

// Returns ", pools of 16, 64", ", learned pools of 16" or "".
std::string pools_text(const AttentionConfig& c) {
  if (c.pools.empty()) return "";
  return str(c.pool_gates ? ", gated" : ",", learns_pools(c) ? " learned" : "", " pools of ", list_text(c.pools));
}

// Reports pools that no token sees. A token sees the pools that end before it.
std::string idle_pools(const AttentionConfig& c, const TrainingSizes& t) {
  const auto idle = std::ranges::find_if(c.pools, [&](std::int64_t size) { return size >= t.longest; });
  if (idle == c.pools.end()) return "";
  return str("pools: [", list_text(c.pools), "]: no pool of ", *idle,
             " tokens ends before the last token of a sequence of ", t.longest, ", so none is ever seen. Leave ",
             idle == c.pools.begin() ? "pools" : "it", " out");
}

}  // namespace

VariantSettings pools_settings() {
  return {.validate = validate_pools,
          .extend = add_pools,
          .text = pools_text,
          .ineffective = idle_pools,
          .trained_parts = {{learns_pools, "learned pools", "make pools", "pooling: learned", "pooling: mean"},
                            {[](const AttentionConfig& c) { return c.pool_gates; }, "pool gates", "weigh pools",
                             "pool_gates: true", "pool_gates: false"}}};
}

}  // namespace ring
