#pragma once
// How many pairs of a query and a key a pattern keeps.

#include <cstdint>
#include <vector>

#include "kernels/attention/pattern.h"

namespace ring {

// Pairs that count, with multiplicity, over all spans; the mean of all KV heads. Of a pattern with pools the keys are
// those of whole documents.
double kept_pairs(const Pattern&, const std::vector<Span>& queries, const std::vector<Span>& keys,
                  std::int64_t kv_heads);

}  // namespace ring
