#pragma once
// Functions shared by the rules of block-sparse attention.

#include <algorithm>
#include <cstdint>

#include "model/attention/config.h"

namespace ring {

// Returns true if the `keep` blocks are chosen at run time, either in each forward or from measurements.
inline bool chooses_blocks(const BlockRuleConfig& r) {
  return r.pattern == BlockChoice::content || r.pattern == BlockChoice::learned || r.pattern == BlockChoice::importance;
}

// Returns the smallest `keep` of the run.
inline std::int64_t min_keep(const BlockRuleConfig& r) {
  std::int64_t min = r.keep;
  for (const TokenChange& c : r.keeps) min = std::min(min, static_cast<std::int64_t>(c.value));
  return min;
}

}  // namespace ring
