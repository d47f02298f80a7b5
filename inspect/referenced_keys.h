#pragma once
// For a ring of ranks that shard the rows of a sequence: to how many of the other ranks' earlier keys a rank's queries
// attend.

#include <cstdint>

#include "kernels/attention/pattern.h"
#include "parallel/context/layout.h"

namespace ring {

// Sums over all ranks. If chunks begin at block boundaries, counting keys is equivalent to counting blocks.
struct ReferencedKeys {
  double before = 0;   // keys of other ranks that come before a rank's queries
  double by_head = 0;  // number of these keys that the queries of one KV head attend to; mean over the heads
  double by_any = 0;   // number of these keys that any KV head of a slice attends to; mean over the slices
};

// Counts for one causal sequence of the layout. `slices` must divide kv_heads. A selection must be given as a block
// pattern with drawn blocks (LayerReading::kept), because a pattern that selects may attend to any key. Pools are not
// counted. Samples of dilated branches count as they are transferred (parallel/context/plan.h), even if no query of the
// rank's part of a segment is sampled.
ReferencedKeys referenced_keys(const Pattern&, std::int64_t kv_heads, std::int64_t slices, const ContextLayout&);

}  // namespace ring
