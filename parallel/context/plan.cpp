#include "parallel/context/plan.h"

#include <algorithm>
#include <cstdlib>

#include "core/check.h"
#include "kernels/attention/pairs.h"
#include "kernels/attention/selection.h"
#include "parallel/context/overlap.h"

namespace ring {
namespace {

// The parts of a document that each of two ranks holds, and the document's index.
struct Parts {
  std::vector<Span> queries, keys;
  std::size_t document = 0;
};

// Returns the parts of documents in a rank's rows, sorted by document, and the document index of each part.
std::vector<Span> parts_of(const std::vector<LocalRows>& held, const std::vector<Span>& documents,
                           std::vector<std::size_t>& document_of) {
  std::vector<Span> parts;
  std::size_t d = 0;
  for (const LocalRows& h : held) {
    const auto ends_before = [&](const Span& s) { return s.first + s.count <= h.global; };
    d = static_cast<std::size_t>(
        std::partition_point(documents.begin() + static_cast<std::ptrdiff_t>(d), documents.end(), ends_before) -
        documents.begin());
    for (std::size_t i = d; i < documents.size() && documents[i].first < h.global + h.count; ++i) {
      const Span& all = documents[i];
      const std::int32_t begin = std::max(all.first, h.global),
                         end = std::min(all.first + all.count, h.global + h.count);
      parts.push_back({h.first + begin - h.global, end - begin, all.position + begin - all.first, all.document});
      document_of.push_back(i);
    }
  }
  return parts;
}

std::vector<Parts> common_parts(const std::vector<LocalRows>& queries, const std::vector<LocalRows>& keys,
                                const std::vector<Span>& documents) {
  std::vector<std::size_t> query_document, key_document;
  const std::vector<Span> q = parts_of(queries, documents, query_document);
  const std::vector<Span> k = parts_of(keys, documents, key_document);
  std::vector<Parts> out;
  for (std::size_t i = 0, j = 0; i < q.size();) {
    const std::size_t document = query_document[i];
    Parts p{.document = document};
    for (; i < q.size() && query_document[i] == document; ++i) p.queries.push_back(q[i]);
    while (j < k.size() && key_document[j] < document) ++j;
    for (; j < k.size() && key_document[j] == document; ++j) p.keys.push_back(k[j]);
    if (!p.keys.empty()) out.push_back(std::move(p));
  }
  return out;
}

// Merges parts [begin, end) of a document. Their rows are adjacent, since the document fills all of the rank's rows
// between two of its parts.
Span joined(const std::vector<Span>& parts, std::size_t begin, std::size_t end) {
  Span all = parts[begin];
  for (std::size_t i = begin + 1; i < end; ++i) {
    RING_CHECK(parts[i].first == all.first + all.count, "context plan: parts of a document are in the rows up to ",
               all.first + all.count, " and from ", parts[i].first, " on, with other rows between");
    all.count += parts[i].count;
  }
  return all;
}

// Returns the pairs for dense attention. Only the order of positions matters to it, so parts are merged into one span,
// with new positions in the same order.
std::vector<SpanPair> dense_pairs(const Parts& p, bool causal, bool same_rank) {
  const std::size_t n = p.queries.size();
  std::vector<SpanPair> out;
  const auto add = [&](std::size_t first_query, std::size_t first_key, std::size_t end_key) {
    if (first_query == n) return;
    SpanPair pair{joined(p.queries, first_query, n), joined(p.keys, first_key, end_key)};
    pair.queries.document = pair.keys.document = pair.keys.position = 0;
    pair.queries.position = same_rank ? 0 : pair.keys.count;
    out.push_back(pair);
  };
  if (same_rank || !causal) {
    add(0, 0, p.keys.size());
    return out;
  }
  const auto first_query = [&](const Span& key) {
    std::size_t i = 0;
    while (i < n && p.queries[i].position < key.position) ++i;
    return i;
  };
  for (std::size_t begin = 0, end = 0; begin < p.keys.size(); begin = end) {
    const std::size_t from = first_query(p.keys[begin]);
    while (end < p.keys.size() && first_query(p.keys[end]) == from) ++end;
    add(from, begin, end);
  }
  return out;
}

// Returns the pairs of a query part and a key part that the pattern connects, trimmed to the rows that see each other.
// Pairs of equal index come first, so that they share the first call.
std::vector<SpanPair> local_pairs(const Parts& p, const Pattern& pattern) {
  std::vector<SpanPair> out;
  const std::size_t max = std::max(p.queries.size(), p.keys.size());
  for (std::size_t apart = 0; apart < max; ++apart)
    for (std::size_t i = 0; i < p.queries.size(); ++i)
      for (std::size_t j = 0; j < p.keys.size(); ++j) {
        if ((j > i ? j - i : i - j) != apart) continue;
        const SpanPair pair = trim_to_pattern(pattern, p.queries[i], p.keys[j]);
        if (pair.queries.count > 0) out.push_back(pair);
      }
  return out;
}

bool overlap(const Span& a, const Span& b) { return a.first < b.first + b.count && b.first < a.first + a.count; }

// Returns the first selection row of each document; empty if nothing is selected.
std::vector<std::int32_t> rows_of_blocks(const Pattern& pattern, const std::vector<Span>& documents) {
  return pattern.selects() ? first_blocks(pattern, documents) : std::vector<std::int32_t>{};
}

// Adds each pair to the first call in which the pair's rows are not used yet. Rows of different documents never
// overlap.
void add_calls(const std::vector<SpanPair>& pairs, const std::vector<std::int32_t>& block_rows, std::size_t document,
               std::vector<AttentionCall>& calls) {
  std::vector<std::vector<SpanPair>> taken;
  for (const SpanPair& pair : pairs) {
    std::size_t r = 0;
    const auto busy = [&](const SpanPair& other) {
      return overlap(pair.queries, other.queries) || overlap(pair.keys, other.keys);
    };
    while (r < taken.size() && std::any_of(taken[r].begin(), taken[r].end(), busy)) ++r;
    if (r == taken.size()) taken.emplace_back();
    taken[r].push_back(pair);
    if (r == calls.size()) calls.emplace_back();
    calls[r].queries.push_back(pair.queries);
    calls[r].keys.push_back(pair.keys);
    if (!block_rows.empty()) calls[r].block_rows.push_back(block_rows[document]);
  }
}

// Returns the contiguous row ranges of the owner that the calls use, and the corresponding rows of the receiver.
std::vector<RowCopy> rows_between(const std::vector<AttentionCall>& calls) {
  std::vector<Span> keys;
  for (const AttentionCall& call : calls) keys.insert(keys.end(), call.keys.begin(), call.keys.end());
  std::vector<RowCopy> ranges;
  std::int32_t at = 0;
  for (const Span& s : sorted_by_row(std::move(keys))) {
    const std::int32_t end = s.first + s.count;
    if (ranges.empty() || s.first > ranges.back().row + ranges.back().count)
      ranges.push_back({.row = s.first, .at = at, .count = 0});
    RowCopy& last = ranges.back();
    last.count = std::max(last.count, end - last.row);
    at = last.at + last.count;
  }
  return ranges;
}

std::int32_t row_at(const std::vector<RowCopy>& ranges, std::int32_t row) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), row, [](std::int32_t r, const RowCopy& c) { return r < c.row; });
  return (after - 1)->at + row - (after - 1)->row;
}

// Adds copies for the marked rows of a range, as runs with constant stride.
void add_copies(const RowCopy& range, const std::vector<char>& marked, std::int32_t head, std::vector<RowCopy>& to) {
  RowCopy run{.head = head};
  const auto flush = [&] {
    if (run.count == 1) run.stride = 1;
    if (run.count > 0) to.push_back(run);
    run.count = 0;
  };
  std::int32_t last = 0;
  for (std::int32_t i = 0; i < range.count; ++i) {
    if (!marked[static_cast<std::size_t>(range.at + i)]) continue;
    if (run.count == 1) run.stride = i - last;
    if (run.count > 0 && i - last != run.stride) flush();
    if (run.count == 0) run.row = range.row + i, run.at = range.at + i, run.stride = 1;
    ++run.count;
    last = i;
  }
  flush();
}

// Marks of the rows that the receiver needs, for each KV head, or once for all heads.
using Marks = std::vector<std::vector<char>>;

Marks marks_of(const KeyRequest& need, const Pattern& pattern, std::int64_t kv_heads,
               const ReferencedBlocks& referenced) {
  const bool by_head = need.referenced || pattern.has_samples();
  Marks marks(static_cast<std::size_t>(by_head ? kv_heads : 1), std::vector<char>(static_cast<std::size_t>(need.rows)));
  for (const AttentionCall& call : need.calls)
    for (std::size_t b = 0; b < call.queries.size(); ++b)
      for (std::size_t h = 0; h < marks.size(); ++h) {
        const SpanPair pair{call.queries[b], call.keys[b]};
        const auto head = static_cast<std::int32_t>(h);
        const auto mark = [&](std::int32_t row, std::int32_t count, std::int32_t stride) {
          for (std::int32_t i = 0; i < count; ++i) marks[h][static_cast<std::size_t>(row + i * stride)] = 1;
        };
        if (need.referenced)
          for_referenced(pattern, pair, referenced, call.block_rows[b], head, mark);
        else
          for_needed(pattern, pair, head, kv_heads, mark);
      }
  return marks;
}

void find_copies(KeyRequest& need, Marks marks, const std::vector<RowCopy>& ranges) {
  if (std::all_of(marks.begin(), marks.end(), [&](const auto& m) { return m == marks[0]; })) marks.resize(1);
  for (std::size_t h = 0; h < marks.size(); ++h)
    for (const RowCopy& range : ranges)
      add_copies(range, marks[h], marks.size() == 1 ? -1 : static_cast<std::int32_t>(h), need.copies);
  need.whole = false;
  if (need.referenced) return;
  if (need.copies.empty()) {  // the pattern keeps none of the possible keys
    need = {};
    return;
  }
  need.whole = marks.size() == 1 && std::all_of(marks[0].begin(), marks[0].end(), [](char m) { return m != 0; });
  if (need.whole) need.copies = ranges;
}

const std::vector<LocalRows>& held_by(const ContextShards& s, int rank) {
  return s.rows_by_rank[static_cast<std::size_t>(rank)];
}

}  // namespace

std::int64_t KeyRequest::row_heads(std::int64_t kv_heads) const {
  std::int64_t sum = 0;
  for (const RowCopy& c : copies) sum += c.count * (c.head < 0 ? kv_heads : 1);
  return sum;
}

KeyRequest needed_keys(const ContextShards& shards, int queries, int keys, const Pattern& pattern,
                       std::int64_t kv_heads, SpanPositions positions, const ReferencedBlocks& referenced) {
  KeyRequest need;
  const bool same = queries == keys, joins = pattern.is_dense() && positions == SpanPositions::in_order;
  const std::vector<std::int32_t> block_rows = rows_of_blocks(pattern, shards.documents);
  for (const Parts& parts : common_parts(held_by(shards, queries), held_by(shards, keys), shards.documents))
    add_calls(joins ? dense_pairs(parts, pattern.causal, same) : local_pairs(parts, pattern), block_rows,
              parts.document, need.calls);
  if (same) {
    need.rows = shards.tokens(keys);
    return need;
  }
  const std::vector<RowCopy> ranges = rows_between(need.calls);
  for (AttentionCall& call : need.calls)
    for (Span& s : call.keys) s.first = row_at(ranges, s.first);
  need.rows = ranges.empty() ? 0 : ranges.back().at + ranges.back().count;
  need.referenced = referenced.kept && pattern.selects();
  if (pattern.is_dense())
    need.copies = ranges;
  else
    find_copies(need, marks_of(need, pattern, kv_heads, referenced), ranges);
  return need;
}

KeyRequest needed_by_any(const ContextShards& shards, const std::vector<int>& queries, int keys, const Pattern& pattern,
                         std::int64_t kv_heads, const ReferencedBlocks& referenced) {
  KeyRequest all;
  Marks marks(static_cast<std::size_t>(kv_heads), std::vector<char>(static_cast<std::size_t>(shards.tokens(keys))));
  for (const int q : queries) {
    const KeyRequest need = needed_keys(shards, q, keys, pattern, kv_heads, SpanPositions::in_order, referenced);
    if (need.none()) continue;
    all.rows = shards.tokens(keys), all.referenced = need.referenced;
    for (const RowCopy& c : need.copies)
      for (std::int32_t h = 0; h < kv_heads; ++h)
        for (std::int32_t i = 0; i < c.count && (c.head < 0 || c.head == h); ++i)
          marks[static_cast<std::size_t>(h)][static_cast<std::size_t>(c.row + i * c.stride)] = 1;
  }
  if (!all.none()) find_copies(all, marks, {{.count = static_cast<std::int32_t>(all.rows)}});
  return all;
}

bool may_need_keys(const ContextShards& shards, int query_rank, int key_rank, const Pattern& pattern) {
  for (const Parts& parts : common_parts(held_by(shards, query_rank), held_by(shards, key_rank), shards.documents))
    for (const Span& q : parts.queries)
      for (const Span& k : parts.keys)
        if (trim_to_pattern(pattern, q, k).queries.count > 0) return true;
  return false;
}

namespace {

void check_pairs(const Pattern& pattern) {
  RING_CHECK(pattern.pools.empty(),
             "context plan: pools have calls of their own (parallel/context/pools/shard_pools.h)");
}

}  // namespace

std::vector<AttentionCall> calls_with_own_keys(const ContextShards& shards, int rank, const Pattern& pattern) {
  check_pairs(pattern);
  std::vector<AttentionCall> calls;
  const std::vector<std::int32_t> block_rows = rows_of_blocks(pattern, shards.documents);
  for (const Parts& parts : common_parts(held_by(shards, rank), held_by(shards, rank), shards.documents))
    add_calls(local_pairs(parts, pattern), block_rows, parts.document, calls);
  std::reverse(calls.begin(), calls.end());
  return calls;
}

std::vector<AttentionCall> calls_with_all_keys(const ContextShards& shards, int queries, const Pattern& pattern) {
  check_pairs(pattern);
  const std::vector<LocalRows> all = {{0, 0, static_cast<std::int32_t>(shards.tokens())}};
  std::vector<AttentionCall> calls;
  const std::vector<std::int32_t> block_rows = rows_of_blocks(pattern, shards.documents);
  for (const Parts& parts : common_parts(held_by(shards, queries), all, shards.documents))
    add_calls(local_pairs(parts, pattern), block_rows, parts.document, calls);
  return calls;
}

namespace {

std::vector<AttentionCall> calls_with(const ContextShards& shards, int queries, const std::vector<Span>& keys,
                                      const std::vector<std::int32_t>& block_rows) {
  std::vector<std::size_t> document_of;
  const std::vector<Span> parts = parts_of(held_by(shards, queries), shards.documents, document_of);
  std::vector<AttentionCall> calls;
  for (std::size_t i = 0; i < parts.size();) {
    const std::size_t document = document_of[i];
    std::vector<SpanPair> pairs;  // have the same keys, so each pair gets its own call
    for (; i < parts.size() && document_of[i] == document; ++i)
      if (keys[document].count > 0) pairs.push_back({parts[i], keys[document]});
    add_calls(pairs, block_rows, document, calls);
  }
  return calls;
}

}  // namespace

std::vector<AttentionCall> calls_with_keys(const ContextShards& shards, int queries, const std::vector<Span>& keys) {
  return calls_with(shards, queries, keys, {});
}

std::vector<AttentionCall> calls_with_documents(const ContextShards& shards, int queries, const Pattern& pattern) {
  return calls_with(shards, queries, shards.documents, rows_of_blocks(pattern, shards.documents));
}

double pairs_of_rank(const ContextShards& shards, int queries, const Pattern& pattern, std::int64_t kv_heads) {
  double pairs = 0;
  for (const AttentionCall& call : calls_with_keys(shards, queries, shards.documents))
    pairs += kept_pairs(pattern, call.queries, call.keys, kv_heads);
  return static_cast<double>(kv_heads) * pairs;
}

}  // namespace ring
