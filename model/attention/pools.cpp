#include "model/attention/pools.h"

#include "core/check.h"
#include "core/checked.h"
#include "model/attention/kinds.h"

namespace ring {

bool learns_pools(const AttentionConfig& c) { return c.pooling == Pooling::learned && !c.pools.empty(); }

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

Pattern with_pools(Pattern p, const AttentionConfig& c) {
  for (const std::int64_t size : c.pools) p.pools.push_back(narrow<std::int32_t>(size));
  return p;
}

std::string pools_text(const AttentionConfig& c) {
  if (c.pools.empty()) return "";
  return str(c.pool_gates ? ", gated" : ",", learns_pools(c) ? " learned" : "", " pools of ", list_text(c.pools));
}

}  // namespace ring
