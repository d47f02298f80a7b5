#pragma once
// Counts the query-key pairs that a pattern keeps.

#include <cstdint>
#include <vector>

#include "kernels/attention/pattern.h"

namespace ring {

// Returns the number of kept pairs over all spans, averaged over the KV heads. A pair that counts several times is
// counted that many times. If the pattern has pools, `keys` must be whole documents.
double kept_pairs(const Pattern&, const std::vector<Span>& queries, const std::vector<Span>& keys,
                  std::int64_t kv_heads);

}  // namespace ring
