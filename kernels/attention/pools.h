#pragma once
// Pools: means of the keys and values of so many neighbouring tokens, which later queries see as keys of their own
// (Pattern::pools). Where they lie when they are made, one document behind the other.

#include <vector>

#include "kernels/attention/block_pool.h"
#include "kernels/attention/pattern.h"

namespace ring {

// The pools of a document that some query of it sees: the last token lies behind all of them.
std::int32_t pools_of(const Span& document, std::int32_t pool);

// For whole documents: the rows of their pools, in a call with Pattern::pool; and how they are made of their tokens'.
std::vector<Span> pool_spans(const std::vector<Span>& documents, std::int32_t pool);
std::vector<PooledRows> pooled_rows(const std::vector<Span>& documents, std::int32_t pool);

}  // namespace ring
