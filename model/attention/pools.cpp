#include "model/attention/pools.h"

#include "core/check.h"
#include "core/checked.h"
#include "model/attention/kinds.h"

namespace ring {

void validate_pools(const AttentionConfig& c, std::vector<std::string>& errors) {
  for (std::size_t i = 1; i < c.pools.size(); ++i)
    if (c.pools[i] <= c.pools[i - 1])
      errors.push_back(str("pools: [", list_text(c.pools), "]: sizes must rise, such as pools: [16, 64]"));
}

Pattern with_pools(Pattern p, const AttentionConfig& c) {
  for (const std::int64_t size : c.pools) p.pools.push_back(narrow<std::int32_t>(size));
  return p;
}

std::string pools_text(const AttentionConfig& c) { return c.pools.empty() ? "" : ", pools of " + list_text(c.pools); }

}  // namespace ring
