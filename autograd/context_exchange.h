#pragma once
// Attention over sharded sequences (context parallelism): the shards, and the interface through which attention gets
// the keys and values of other ranks.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/attention/pooled_attention.h"

namespace ring {

// Adjacent rows of a rank that are also adjacent in the whole micro-batch.
struct LocalRows {
  std::int32_t first = 0;   // first row, counted in the rank's rows
  std::int32_t global = 0;  // first row, counted in the micro-batch
  std::int32_t count = 0;
  bool operator==(const LocalRows&) const = default;
};

// The sharding of a micro-batch's rows. Every rank knows the rows of all ranks.
struct ContextShards {
  int rank = 0;                 // this rank
  std::vector<Span> documents;  // rows counted in the micro-batch
  // Rows of each rank, ascending both in the rank's rows and in the micro-batch.
  std::vector<std::vector<LocalRows>> rows_by_rank;

  int ranks() const { return static_cast<int>(rows_by_rank.size()); }
  std::int64_t tokens(int of_rank) const;  // number of rows that the rank holds
  std::int64_t tokens() const;             // number of rows of the micro-batch
};

// The part of the block selection that a process makes: a range of the KV heads that it computes, the pattern
// restricted to these heads, and all documents.
struct SelectionPart {
  KvHeads heads;
  Pattern pattern;
  std::vector<Span> spans;
  bool shared = false;  // true if ranks share the queries: this rank selects only for its own query rows
};

// Observer of attention: receives a call and its results, for some heads of SelectionPart, counted from its first
// head. Each head is in one call. If ranks share the queries, there is one call for each part of a document that this
// rank holds; the call then has this rank's q and lse and the keys of the whole documents, but neither values nor
// output. Keys are sent for it, so all ranks must watch, or none.
using AttentionWatch = std::function<void(const PooledAttention&, KvHeads)>;

class ContextExchange {
 public:
  virtual ~ContextExchange() = default;
  // Runs attention for this rank's rows, given the kernels' arguments without spans or carries: every query sees the
  // keys of its document on all ranks. Collective, also for ranks without rows. Returns the selection for
  // selection_part(): the given one, or a new one if the pattern selects; backward needs it. watch: may be empty.
  virtual BlockSelection forward(const PooledAttention&, const std::shared_ptr<const ContextShards>&,
                                 const ExecContext&, const AttentionWatch& watch) = 0;
  virtual void backward(const PooledAttentionBackward&, const std::shared_ptr<const ContextShards>&,
                        const ExecContext&) = 0;
  // Returns the part of the selection that this rank makes when it attends with kv_heads KV heads. It has no heads if
  // the rank cannot know its part before it attends.
  virtual SelectionPart selection_part(const std::shared_ptr<const ContextShards>&, const Pattern&,
                                       std::int64_t /*kv_heads*/) {
    return {};
  }
  // Gathers t [n,H,D], this rank's rows, into the rows of all ranks, [N,H,D], in the micro-batch's order. Collective.
  virtual Tensor all_rows(const Tensor& t, const ContextShards&, const ExecContext&) = 0;
  // Replaces t, f32, by its sum over the ranks. Collective.
  virtual void sum(const Tensor& t, const ExecContext&) = 0;
};

}  // namespace ring
