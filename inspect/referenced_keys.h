#pragma once
// Counts how many earlier keys of other ranks a rank's queries attend to, if the rows of a sequence are sharded over a
// ring of ranks.

#include <cstdint>

#include "kernels/attention/pattern.h"
#include "parallel/context/layout.h"

namespace ring {

// Numbers of keys, summed over all ranks. If chunks begin at block boundaries, counting keys is equivalent to counting
// blocks.
struct ReferencedKeys {
  double before = 0;   // keys of other ranks that come before a rank's queries
  double by_head = 0;  // number of these keys that the queries of one KV head attend to; mean over the heads
  double by_any = 0;   // number of these keys that any KV head of a slice attends to; mean over the slices
};

// Counts the keys for one causal sequence of the layout. Pools are not counted.
// - `slices`: number of shards of the KV heads; must divide kv_heads.
// - A pattern that selects blocks must be given with its selection as drawn block rules (LayerReading::kept), because
//   otherwise it may attend to any key.
// - Samples of dilated branches count as they are transferred (parallel/context/plan.h), even if no query of the rank's
//   part of a segment is sampled.
ReferencedKeys referenced_keys(const Pattern&, std::int64_t kv_heads, std::int64_t slices, const ContextLayout&);

}  // namespace ring
