#pragma once
// Which part of two spans of one document a pattern connects.

#include <cstdint>
#include <functional>

#include "parallel/context/key_references.h"

namespace ring {

struct SpanPair {
  Span queries, keys;
};

// The spans, cut at both ends to what sees and is seen; no rows: nothing of them does. Block patterns are cut by
// causality alone.
SpanPair seen_part(const Pattern&, const Span& queries, const Span& keys);

// fn(row, count, stride): rows of keys that a KV head needs; where heads do not differ in their samples, that any of
// them needs. Rows may come more than once.
void for_needed(const Pattern&, const SpanPair&, std::int32_t head, std::int64_t kv_heads,
                const std::function<void(std::int32_t, std::int32_t, std::int32_t)>& fn);

// The same by a selection in host memory: the blocks that these queries keep. row: of the document's first block.
void for_referenced(const Pattern&, const SpanPair&, const ReferencedBlocks&, std::int32_t row, std::int32_t head,
                    const std::function<void(std::int32_t, std::int32_t, std::int32_t)>& fn);

}  // namespace ring
