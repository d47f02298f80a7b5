#include "kernels/attention/selection.h"

#include <algorithm>

#include "core/check.h"
#include "core/checked.h"
#include "kernels/attention/blocks.h"

namespace ring {

std::int32_t blocks_of(const Pattern& pattern, const Span& s) {
  if (s.count == 0) return 0;
  const std::int64_t size = pattern.blocks->block(), end = s.position - pattern.origin(s.document) + s.count;
  return narrow<std::int32_t>((end + size - 1) / size);
}

std::vector<std::int32_t> first_blocks(const Pattern& pattern, const std::vector<Span>& spans) {
  std::vector<std::int32_t> first = {0};
  for (const Span& s : spans) first.push_back(narrow<std::int32_t>(std::int64_t{first.back()} + blocks_of(pattern, s)));
  return first;
}

void check(const BlockSelection& s, const Pattern& pattern, const std::vector<Span>& queries,
           const std::vector<Span>& keys, std::int64_t kv_heads, const char* op) {
  RING_CHECK(s.bits.defined() == pattern.selects(), op,
             s.bits.defined() ? ": a selection for a pattern that has rules for all heads"
                              : ": a pattern that selects blocks, without a selection");
  if (!s.bits.defined() || queries.empty()) return;
  const bool whole = s.rows.empty();
  RING_CHECK(!whole || queries == keys, op,
             ": a selection is for whole documents, but spans of queries and keys differ");
  RING_CHECK(whole || s.rows.size() == queries.size(), op, ": a selection has rows for ", s.rows.size(), " of ",
             queries.size(), " spans");
  std::int32_t rows = 0, max = 0;
  for (std::size_t b = 0; b < queries.size(); ++b) {
    const Span& q = queries[b];
    RING_CHECK(!whole || q.count == 0 || q.position == q.document, op,
               ": a selection is for whole documents, not from position ", q.position - q.document, " on");
    const std::int32_t blocks = blocks_of(pattern, q);
    const std::int64_t first = q.count == 0 ? 0 : (q.position - pattern.origin(q.document)) / pattern.blocks->block();
    RING_CHECK(whole || q.count == 0 || s.rows[b] + first >= 0, op, ": a selection has no row ", s.rows[b] + first);
    rows = whole ? rows + blocks : std::max(rows, blocks == 0 ? 0 : s.rows[b] + blocks);
    max = std::max(max, blocks);
  }
  RING_CHECK(s.bits.dtype() == DType::i32 && s.bits.is_contiguous() && s.bits.shape().size() == 3 &&
                 (whole ? s.bits.dim(0) == rows : s.bits.dim(0) >= rows) && s.bits.dim(1) == kv_heads &&
                 s.bits.dim(2) * 32 >= max,
             op, ": the selection is ", describe(s.bits), ", expected i32[", rows, ", ", kv_heads, ", ",
             (max + 31) / 32, "]");
}

}  // namespace ring
