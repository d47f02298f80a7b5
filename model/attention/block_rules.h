#pragma once
// What rules of block-sparse attention have in common.

#include <algorithm>
#include <cstdint>

#include "model/attention/config.h"

namespace ring {

// Whether `keep` blocks are chosen while the model runs or trains.
inline bool chooses_blocks(const BlockRuleConfig& r) {
  return r.pattern == BlockChoice::content || r.pattern == BlockChoice::learned || r.pattern == BlockChoice::importance;
}

// The least `keep` of the run.
inline std::int64_t least_keep(const BlockRuleConfig& r) {
  std::int64_t least = r.keep;
  for (const TokenChange& c : r.keeps) least = std::min(least, static_cast<std::int64_t>(c.value));
  return least;
}

}  // namespace ring
