#pragma once
// The part of two spans of one document that a pattern connects.

#include <cstdint>
#include <functional>

#include "parallel/context/key_references.h"

namespace ring {

struct SpanPair {
  Span queries, keys;
};

// Returns the spans, trimmed at both ends to the rows that see keys and the rows that are seen; empty if there are
// none. Block patterns are trimmed by causality alone.
SpanPair trim_to_pattern(const Pattern&, const Span& queries, const Span& keys);

// Calls fn(row, count, stride) for the key rows that a KV head needs; if the pattern's samples do not differ by head,
// for those that any head needs. Rows may come more than once.
void for_needed(const Pattern&, const SpanPair&, std::int32_t head, std::int64_t kv_heads,
                const std::function<void(std::int32_t, std::int32_t, std::int32_t)>& fn);

// Same for a selection in host memory: calls fn for the blocks that these queries selected. row: the selection's row of
// the document's first block.
void for_referenced(const Pattern&, const SpanPair&, const ReferencedBlocks&, std::int32_t row, std::int32_t head,
                    const std::function<void(std::int32_t, std::int32_t, std::int32_t)>& fn);

}  // namespace ring
