#pragma once
// Attention over sequences that are cut among ranks (context parallelism): who holds what, and the interface through
// which attention gets the keys and values of the others.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/attention/pooled_attention.h"

namespace ring {

// Neighbouring rows of a rank that are neighbours in the whole micro-batch, too.
struct HeldRows {
  std::int32_t first = 0;   // counted in the rank's rows
  std::int32_t global = 0;  // counted in the micro-batch
  std::int32_t count = 0;
  bool operator==(const HeldRows&) const = default;
};

// A micro-batch whose rows are shared out. Every rank knows what the others hold.
struct ContextShards {
  int rank = 0;                             // this one
  std::vector<Span> documents;              // rows counted in the micro-batch
  std::vector<std::vector<HeldRows>> held;  // by rank; ascending, in the rank's order and in the micro-batch's

  int ranks() const { return static_cast<int>(held.size()); }
  std::int64_t tokens(int of_rank) const;  // rows that it holds
  std::int64_t tokens() const;             // of the micro-batch
};

// The part of the selection of blocks that falls to a process: for these of the KV heads that it computes, the pattern
// as they see it, and all of these documents.
struct SelectionPart {
  KvHeads heads;
  Pattern pattern;
  std::vector<Span> spans;
  bool shared = false;  // with other ranks: of the queries it has its own rows alone
};

// Sees attention where it is computed: a call with its results, for these of the heads of SelectionPart, counted from
// their first one. Each head is in one call; where queries are shared among ranks, in one for each part of a document
// that this rank holds: the call then has its q and lse, the keys of the whole documents, and neither values nor
// output. Keys travel for it: all ranks watch, or none.
using AttentionWatch = std::function<void(const PooledAttention&, KvHeads)>;

class ContextExchange {
 public:
  virtual ~ContextExchange() = default;
  // The arguments of the kernels, of this rank's rows and without spans or carries: every query sees the keys of its
  // document on all ranks. All ranks call the same in the same order, also those that hold no row. The
  // selection that is returned is the one that was given, else a new one where the pattern selects; the backward needs
  // it. It is for selection_part(). watch: may be empty.
  virtual BlockSelection forward(const PooledAttention&, const std::shared_ptr<const ContextShards>&,
                                 const ExecContext&, const AttentionWatch& watch) = 0;
  virtual void backward(const PooledAttentionBackward&, const std::shared_ptr<const ContextShards>&,
                        const ExecContext&) = 0;
  // What this rank selects while it attends with so many KV heads; no heads: it is not known before it attends.
  virtual SelectionPart selection_part(const std::shared_ptr<const ContextShards>&, const Pattern&,
                                       std::int64_t /*kv_heads*/) {
    return {};
  }
  // t [n,H,D], this rank's rows: those of all ranks, [N,H,D], in the micro-batch's order.
  virtual Tensor all_rows(const Tensor& t, const ContextShards&, const ExecContext&) = 0;
  // t f32 becomes its sum over the ranks.
  virtual void sum(const Tensor& t, const ExecContext&) = 0;
};

}  // namespace ring
