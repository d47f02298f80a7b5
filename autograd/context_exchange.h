#pragma once
// Context parallelism: how sequences are sharded, and the interfaces through which layers get what other ranks hold.
// Attention gets keys and values; recurrences over tokens get the states before their rows.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/attention/pools/pooled_attention.h"

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
  // Set if the ranks share one chunk of a sequence that is computed in chunks (train.sequence_chunk). Rows are then
  // counted in the chunk. In `chunks`, chunks take the place of ranks: chunks->rank is this chunk, and
  // chunks->documents are the documents of the whole sequence.
  std::shared_ptr<const ContextShards> chunks{};

  int ranks() const { return static_cast<int>(rows_by_rank.size()); }
  std::int64_t tokens(int of_rank) const;  // number of rows that the rank holds
  std::int64_t tokens() const;             // number of rows of the micro-batch
};

// Key blocks [first, end) of a chunk of sequences (train.sequence_chunk). `all`: number of blocks of all documents,
// which are numbered consecutively. No block is in two chunks.
struct ChunkBlocks {
  std::int32_t first = 0, end = 0, all = 0;
  std::int32_t count() const { return end - first; }
  bool operator==(const ChunkBlocks&) const = default;
};

// The part of the block selection that one process computes. heads: a range of the KV heads that the process attends
// with. pattern: restricted to these heads. spans: all documents.
struct SelectionPart {
  KvHeads heads;
  Pattern pattern;
  std::vector<Span> spans;
  bool shared = false;  // true if each rank holds some of the query rows and selects for these rows only
  // Set for a sequence in chunks: selections and scores have rows for this chunk's blocks only; row 0 is block
  // chunk->first. `shared` is then true.
  std::optional<ChunkBlocks> chunk{};
};

// Receives attention calls with their results, e.g. for statistics. KvHeads counts from the first head of the
// SelectionPart. Each head is in one call. If ranks share the queries (SelectionPart::shared), there is instead one
// call for each part of a document that this rank holds. Such a call has this rank's q and lse and the keys of the
// whole documents, but neither values nor output. The ranks exchange these keys only for the watch, so either all ranks
// watch or none. For a chunk (SelectionPart::chunk) there is one call for each earlier chunk and for the chunk itself,
// with the keys of that chunk.
using AttentionWatch = std::function<void(const PooledAttention&, KvHeads)>;

// Adjacent rows of this rank, or of this chunk, which a recurrence over tokens (linear attention) computes in one call.
// A part that starts from a state, or passes one on, belongs to a single document.
struct StatePart {
  std::int32_t first = 0, count = 0;  // rows, counted in the rank's rows
  std::vector<Span> documents;        // counted from `first`
  // starts: the document began before the part, so the part starts from the state after the rows before it.
  // continues: the document continues after the part, so the state after the part is passed on.
  bool starts = false, continues = false;
  std::int64_t run = 0;  // index in ContextShards::rows_by_rank; at most one part of a run starts from a state
};

// How a layer computes its parts, and the states that it passes from part to part. Some states depend only on the last
// `reach` rows before them, such as the inputs of a convolution. For these, `early` returns the state after a part
// before the part is computed, so that no part waits for more than one other.
struct StatePass {
  enum class Kind : std::uint8_t { conv_inputs, delta };
  Kind kind = Kind::delta;
  Shape shape;             // of the state of a document, f32
  std::int64_t reach = 0;  // the state after a part with at least `reach` rows depends on the part only; 0: on all rows
  // Forward: computes a part. `passed` is the state before the part; undefined if the document begins in it. Returns
  // the state after the part, which is ignored if the document ends in it.
  //
  // Backward: computes the gradients of a part. `passed` is the gradient of the state after the part; undefined if that
  // state has none. Returns the gradient of the state before it, which is ignored if the document begins in the part.
  std::function<Tensor(std::size_t part, const Tensor& passed)> compute;
  std::function<Tensor(std::size_t part)>
      early{};  // required if reach > 0; called only for parts with at least `reach` rows
};

// Passes states along documents that are divided among ranks or chunks, in the forward from the first part of a
// document to the last, and in the backward, gradients, from the last to the first.
class StateChain {
 public:
  virtual ~StateChain() = default;
  // Returns the parts of this rank's rows, in order. Every row is in one part.
  virtual std::vector<StatePart> parts(const ContextShards&) const = 0;
  // Call StatePass::compute once for each part, when `passed` is known. Collective, also for ranks without rows.
  virtual void forward(const StatePass&, const ContextShards&, const ExecContext&) = 0;
  virtual void backward(const StatePass&, const ContextShards&, const ExecContext&) = 0;
};

class ContextExchange {
 public:
  virtual ~ContextExchange() = default;
  // Returns the exchange that a layer uses for attention: this object, unless it keeps state for each layer. The
  // returned exchange lives as long as this object.
  virtual ContextExchange& of_layer(std::int64_t /*layer*/) { return *this; }
  // Runs attention for this rank's rows. The arguments are the kernels', without spans and without carries (earlier
  // partial results): every query sees the keys of its document on all ranks. Returns the selection for
  // selection_part(): the given one, or a new one if the pattern selects. Backward needs the selection. `watch` may be
  // empty. Collective, also for ranks without rows.
  virtual BlockSelection forward(const PooledAttention&, const std::shared_ptr<const ContextShards>&,
                                 const ExecContext&, const AttentionWatch& watch) = 0;
  virtual void backward(const PooledAttentionBackward&, const std::shared_ptr<const ContextShards>&,
                        const ExecContext&) = 0;
  // Returns the part of the selection that this rank makes if it attends with kv_heads KV heads. The part has no heads
  // if it is not known before attention runs.
  virtual SelectionPart selection_part(const std::shared_ptr<const ContextShards>&, const Pattern&,
                                       std::int64_t /*kv_heads*/) {
    return {};
  }
  // Gathers t [n,H,D], this rank's rows, into the rows of all ranks, [N,H,D], in the micro-batch's order. Collective.
  virtual Tensor all_rows(const Tensor& t, const ContextShards&, const ExecContext&) = 0;
  // Replaces t, f32, by its sum over the ranks. Collective.
  virtual void sum(const Tensor& t, const ExecContext&) = 0;
  // Requires a SelectionPart with a chunk. `own` [blocks,C] has a row for each block of the chunk. Returns the rows of
  // all blocks up to the chunk's last one, [end,C]: a view of memory that stays as it is until the end of the step. At
  // most one such tensor per layer.
  virtual Tensor join_earlier_blocks(const Tensor& own, const ChunkBlocks&, const ExecContext&) {
    fail("join_earlier_blocks(", describe(own), "): this exchange has no chunks");
  }
  // The backward of join_earlier_blocks(), called once for each chunk, from the last to the first. gradient [end,C]:
  // the chunk's contribution to the gradient of all these rows. Returns the gradient of `own`, in the type of
  // `gradient`, to which later chunks have contributed, too.
  virtual Tensor join_earlier_blocks_backward(const Tensor& gradient, const ChunkBlocks&, const ExecContext&) {
    fail("join_earlier_blocks_backward(", describe(gradient), "): this exchange has no chunks");
  }
  // Returns the chain that passes the states of a layer's recurrence. It lives as long as this object.
  virtual StateChain& states() { fail("this exchange passes no states between the parts of a sequence"); }
};

}  // namespace ring
