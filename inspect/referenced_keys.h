#pragma once
// For a ring of ranks that shares the rows of a sequence: how many of the other ranks' keys before a rank's queries
// these queries attend to.

#include <cstdint>

#include "kernels/attention/pattern.h"
#include "parallel/context/layout.h"

namespace ring {

// Sums over all ranks. If chunks begin at block boundaries, counting keys is the same as counting blocks.
struct ReferencedKeys {
  double before = 0;   // keys of other ranks that precede a rank's queries
  double by_head = 0;  // of these, keys that the queries of one KV head attend to; mean over the heads
  double by_any = 0;   // of these, keys that any KV head of a slice attends to; mean over the slices
};

// Counts for one causal sequence of the layout. Requires that `slices` divides kv_heads. Requires a selection as a
// drawn block pattern (LayerReading::kept), because a pattern that selects may attend to any key. Pools are not
// counted. Samples of dilated branches count as an exchange transfers them (parallel/context/plan.h), even if no query
// of the rank's part of a segment is sampled.
ReferencedKeys referenced_keys(const Pattern&, std::int64_t kv_heads, std::int64_t slices, const ContextLayout&);

}  // namespace ring
