#pragma once
// Where a ring of ranks shares the rows of a sequence: how many of the keys that come before a rank's queries, and are
// not its own, some of these queries attend to.

#include <cstdint>

#include "kernels/attention/pattern.h"
#include "parallel/context/layout.h"

namespace ring {

// Sums over all ranks. Where chunks begin at blocks, counting keys is counting blocks.
struct ReferencedKeys {
  double before = 0;   // keys of other ranks before a rank's queries
  double by_head = 0;  // those that the queries of a KV head attend to, the mean of all
  double by_any = 0;   // those that the queries of any KV head of a slice do, the mean of all slices
};

// One causal sequence of the layout; so many slices divide the KV heads. A selection has to come as a drawing
// (LayerReading::kept): a pattern that selects may attend to any key. Pools are not counted. Samples of dilated
// branches count as an exchange brings them (parallel/context/plan.h): also where a rank's part of a segment samples no
// query.
ReferencedKeys referenced_keys(const Pattern&, std::int64_t kv_heads, std::int64_t slices, const ContextLayout&);

}  // namespace ring
