#pragma once
// Pools: means of the keys and values of p consecutive tokens, which later queries see as additional keys
// (Pattern::pools). This header lays out the pools of whole documents: one row per pool, document after document.

#include <vector>

#include "kernels/attention/block_pool.h"
#include "kernels/attention/pattern.h"

namespace ring {

// Returns how many pools of the document some query sees. A pool that includes the last token has no later query.
std::int32_t count_pools(const Span& document, std::int32_t pool);

// For whole documents, returns the key spans of their pools, for a call with Pattern::pool, and the rows of the tokens
// that the pools are made of. pool_spans() throws Error if a span is not a whole document.
std::vector<Span> pool_spans(const std::vector<Span>& documents, std::int32_t pool);
std::vector<PoolSegment> pooled_rows(const std::vector<Span>& documents, std::int32_t pool);

}  // namespace ring
