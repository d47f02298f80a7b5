#pragma once
// The part of two spans of the same document that a pattern connects.

#include <cstdint>
#include <functional>

#include "parallel/context/key_references.h"

namespace ring {

struct SpanPair {
  Span queries, keys;
};

// Returns the spans, trimmed at both ends to the query rows that see keys and the key rows that are seen; empty if
// there are none. Block patterns are trimmed only by causality.
SpanPair trim_to_pattern(const Pattern&, const Span& queries, const Span& keys);

// Calls fn(row, count, stride) for the key rows that a KV head needs. If the pattern samples the same keys for all
// heads, calls fn for the rows that any head needs. Rows may be repeated.
void for_needed(const Pattern&, const SpanPair&, std::int32_t head, std::int64_t kv_heads,
                const std::function<void(std::int32_t, std::int32_t, std::int32_t)>& fn);

// Same for a selection in host memory: calls fn for the blocks that these queries selected. row: selection row of the
// document's first block.
void for_referenced(const Pattern&, const SpanPair&, const ReferencedBlocks&, std::int32_t row, std::int32_t head,
                    const std::function<void(std::int32_t, std::int32_t, std::int32_t)>& fn);

}  // namespace ring
