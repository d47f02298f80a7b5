#pragma once
// What attention between the queries of one rank and the keys of another one computes and transfers: a pure function of
// who holds what, of the pattern and of a selection that both know (key_references.h), so that sender and
// receiver agree without a message.

#include <cstdint>
#include <vector>

#include "autograd/context_exchange.h"
#include "parallel/context/key_references.h"

namespace ring {

// One call of a kernel: no row of queries and none of keys occurs twice.
struct AttentionCall {
  std::vector<Span> queries, keys;
  std::vector<std::int32_t> block_rows{};  // a selection's rows for these queries; empty where nothing is selected
};

// Rows row, row + stride, .. of the owner's tensors, which become rows at, at + stride, .. of the receiver's.
struct RowCopy {
  std::int32_t row = 0, at = 0, count = 0, stride = 1;
  std::int32_t head = -1;  // a KV head; -1: all of them
  bool operator==(const RowCopy&) const = default;
};

// The keys of one rank as another one needs them. Its rows are those that lie between needed ones, too: spans keep
// their positions, and the pattern leaves out what did not travel.
struct NeededKeys {
  std::int64_t rows = 0;              // of the tensors that the receiver computes with
  bool whole = true;                  // the copies are all of these rows, in order
  bool referenced = false;            // the copies are referenced keys alone
  std::vector<RowCopy> copies;        // no row of a head twice
  std::vector<AttentionCall> rounds;  // queries: the receiver's rows; keys: rows counted in `rows`

  bool none() const { return rows == 0; }
  std::int64_t row_heads(std::int64_t kv_heads) const;  // that travel, of keys alone
  // For which a message takes memory: where a selection says what travels, for all rows, so that each step of a run has
  // blocks of the same sizes (core/step_arena.h).
  std::int64_t room(std::int64_t kv_heads) const { return referenced ? rows * kv_heads : row_heads(kv_heads); }
};

// Whether dense attention may join the parts of a document that a rank holds, so that fewer calls are needed. Their
// positions are then true in order alone; as they are in the row: dropout's masks are addressed by them.
enum class SpanPositions : std::uint8_t { in_order, in_row };

// What rank `queries` needs of rank `keys`. Of itself: `rows` are its own, in place, and nothing is copied. selected:
// of all ranks' queries, in host memory; without one a pattern that selects needs all that come before.
NeededKeys needed_keys(const ContextShards&, int queries, int keys, const Pattern&, std::int64_t kv_heads,
                       SpanPositions = SpanPositions::in_order, const ReferencedBlocks& referenced = {});

// The calls of a rank with its own keys, of pairs of chunks: the last ones are those of equal chunks.
std::vector<AttentionCall> rounds_with_own(const ContextShards&, int rank, const Pattern&);

// What any of these ranks needs of rank `keys`, in tensors of as many rows as that one has; without rounds.
NeededKeys needed_by_any(const ContextShards&, const std::vector<int>& queries, int keys, const Pattern&,
                         std::int64_t kv_heads, const ReferencedBlocks& referenced = {});

// Whether it may need anything; cheaper, and never false where it does.
bool may_need(const ContextShards&, int queries, int keys, const Pattern&);

// The calls of a rank that has the keys of the whole micro-batch, in its order.
std::vector<AttentionCall> rounds_with_all(const ContextShards&, int queries, const Pattern&);

// A rank's queries with these keys of each document, which may be none.
std::vector<AttentionCall> calls_with_keys(const ContextShards&, int queries, const std::vector<Span>& keys);
// With each document's keys from its first to its last, whatever these queries see of them.
std::vector<AttentionCall> calls_with_documents(const ContextShards&, int queries, const Pattern&);

}  // namespace ring
