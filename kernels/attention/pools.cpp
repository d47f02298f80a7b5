#include "kernels/attention/pools.h"

#include "core/check.h"

namespace ring {

std::int32_t count_pools(const Span& s, std::int32_t pool) { return s.count == 0 ? 0 : (s.count - 1) / pool; }

std::vector<Span> pool_spans(const std::vector<Span>& documents, std::int32_t pool) {
  std::vector<Span> spans;
  std::int32_t first = 0;
  for (const Span& s : documents) {
    RING_CHECK(s.count == 0 || s.position == s.document, "attention: pools of a document from its token ",
               s.position - s.document, " on: pools are made of whole documents");
    spans.push_back({.first = first, .count = count_pools(s, pool), .position = s.document, .document = s.document});
    first += count_pools(s, pool);
  }
  return spans;
}

std::vector<PoolSegment> pooled_rows(const std::vector<Span>& documents, std::int32_t pool) {
  std::vector<PoolSegment> rows;
  std::int32_t out = 0;
  for (const Span& s : documents) {
    rows.push_back({.first = s.first, .count = count_pools(s, pool) * pool, .out = out});
    out += count_pools(s, pool);
  }
  return rows;
}

}  // namespace ring
