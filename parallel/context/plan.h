#pragma once
// Plans of the computation and transfer between one rank's queries and another rank's keys. A plan is a pure function
// of the shards, the pattern and a selection that both ranks know (key_references.h), so that sender and receiver agree
// without exchanging a message.

#include <cstdint>
#include <vector>

#include "autograd/context_exchange.h"
#include "parallel/context/key_references.h"

namespace ring {

// One call of a kernel. Invariant: each query row and each key row occurs at most once.
struct AttentionCall {
  std::vector<Span> queries, keys;
  std::vector<std::int32_t> block_rows{};  // selection row of each span's document; empty if nothing is selected
};

// Copies rows row, row + stride, ... of the owner's tensors to rows at, at + stride, ... of the receiver's.
struct RowCopy {
  std::int32_t row = 0, at = 0, count = 0, stride = 1;
  std::int32_t head = -1;  // KV head; -1 means all heads
  bool operator==(const RowCopy&) const = default;
};

// The keys of one rank that another rank needs. The receiver's tensors also have the rows between needed rows, so that
// spans keep their positions; the pattern masks the rows that were not sent.
struct KeyRequest {
  std::int64_t rows = 0;             // rows of the receiver's tensors
  bool whole = true;                 // true if the copies cover all `rows`, in order
  bool referenced = false;           // true if only referenced keys are copied
  std::vector<RowCopy> copies;       // each row of a head occurs at most once
  std::vector<AttentionCall> calls;  // queries: rows of the receiver; keys: rows [0, rows)

  bool none() const { return rows == 0; }
  // Number of (row, head) pairs of keys that are sent; as many pairs of values are sent, too.
  std::int64_t row_heads(std::int64_t kv_heads) const;
  // Number of (row, head) pairs that a message is allocated for: all rows if a selection decides what is sent, so that
  // allocation sizes are the same in each step (core/step_arena.h).
  std::int64_t room(std::int64_t kv_heads) const { return referenced ? rows * kv_heads : row_heads(kv_heads); }
};

// Meaning of the positions in a plan's spans.
//   in_order   only the order of positions counts: for dense attention, a rank's parts of a document may be merged into
//              one span, which saves calls
//   in_row     positions in the packed row, which dropout masks depend on
enum class SpanPositions : std::uint8_t { in_order, in_row };

// Returns the keys of rank `keys` that rank `queries` needs. For a rank's own keys, `rows` are its own rows, in place,
// and nothing is copied. referenced: blocks selected by all ranks' queries, in host memory; without it a pattern that
// selects needs all earlier keys.
KeyRequest needed_keys(const ContextShards&, int queries, int keys, const Pattern&, std::int64_t kv_heads,
                       SpanPositions = SpanPositions::in_order, const ReferencedBlocks& referenced = {});

// Returns the calls of a rank with its own keys, one pair of chunks at a time. The last call has the pairs of each
// chunk with itself.
std::vector<AttentionCall> calls_with_own_keys(const ContextShards&, int rank, const Pattern&);

// Returns the keys of rank `keys` that any of these ranks needs, in tensors with all rows of that rank; without calls.
KeyRequest needed_by_any(const ContextShards&, const std::vector<int>& queries, int keys, const Pattern&,
                         std::int64_t kv_heads, const ReferencedBlocks& referenced = {});

// Returns false only if rank `query_rank` needs no keys of rank `key_rank`; cheaper than needed_keys().
bool may_need_keys(const ContextShards&, int query_rank, int key_rank, const Pattern&);

// Returns the calls of a rank with the keys of the whole micro-batch, in the micro-batch's order.
std::vector<AttentionCall> calls_with_all_keys(const ContextShards&, int query_rank, const Pattern&);

// Returns the number of (query, key) pairs for a rank's queries, summed over the given KV heads. Pools count as keys.
double pairs_of_rank(const ContextShards&, int query_rank, const Pattern&, std::int64_t kv_heads);

// Returns the calls of a rank's queries with the given keys of each document; a document's keys may be empty.
std::vector<AttentionCall> calls_with_keys(const ContextShards&, int query_rank, const std::vector<Span>& keys);
// Same with all keys of each document, whether or not the queries see them.
std::vector<AttentionCall> calls_with_documents(const ContextShards&, int query_rank, const Pattern&);

}  // namespace ring
