#pragma once
// Attention over a sequence that one process computes chunk by chunk (train.sequence_chunk), because the activations of
// the whole sequence would not fit into memory. The caller first runs all chunks in order without a tape, and their
// keys and values are stored. It then runs the chunks again from last to first, each with a tape and immediately
// followed by its backward. By then, all later chunks have added their contributions to the stored gradients of this
// chunk's keys and values. Only attention and recurrences connect tokens, and the states of recurrences are stored, too
// (state_chain.h), so the results equal those of the whole sequence, up to the rounding of sums.
// Under context parallelism ranks share each chunk. In attention, each rank has all rows of the chunk for some of the
// heads (head_exchange.h), and stores the keys and values of these heads only.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/context/chunk_plan.h"
#include "parallel/context/chunk_store.h"
#include "parallel/context/exchange.h"
#include "parallel/context/long_branches.h"

namespace ring {

class ChunkedContext final : public ContextExchange {
 public:
  // host_limit: as in ChunkStore. ranks: the ranks that share each chunk, which must outlive this object; null if this
  // process computes whole chunks.
  ChunkedContext(const ExecContext&, std::size_t host_limit, Communicator* ranks = nullptr);
  ~ChunkedContext() override;

  // Specifies whether forward() stores a chunk's keys and values, and if so, whether only for the forward of later
  // chunks or also for their backward.
  enum class Keep : std::uint8_t { nothing, for_forward, for_backward };
  // While it exists, a model computes a chunk. Does nothing without a context.
  class [[nodiscard]] Chunk {
   public:
    // shards: the chunks, or how ranks share this chunk (ContextShards::chunks). Before the first chunk that is kept,
    // everything that is stored is dropped.
    Chunk(ChunkedContext* context, const std::shared_ptr<const ContextShards>& shards, Keep keep);
    ~Chunk();
    Chunk(const Chunk&) = delete;
    Chunk& operator=(const Chunk&) = delete;

   private:
    ChunkedContext* context_;
  };
  void clear();  // drops what is stored
  std::size_t host_bytes() const { return store_.host_bytes(); }
  std::size_t expected_host_bytes() const { return store_.expected_host_bytes(); }   // as in ChunkStore
  const ContextTransfers* transfers() const { return ranks_ ? &*ranks_ : nullptr; }  // null if ranks share no chunk

  // Returns the exchange for a layer. Its shards are the chunks, of which ContextShards::rank is the current one, or
  // how ranks share this chunk.
  ContextExchange& of_layer(std::int64_t layer) override;

  // These functions throw Error, except selection_part() and, if ranks share chunks, sum(): only the exchange of a
  // layer computes attention, and the rows of other chunks are not available.
  BlockSelection forward(const PooledAttention&, const std::shared_ptr<const ContextShards>&, const ExecContext&,
                         const AttentionWatch&) override;
  void backward(const PooledAttentionBackward&, const std::shared_ptr<const ContextShards>&,
                const ExecContext&) override;
  Tensor all_rows(const Tensor&, const ContextShards&, const ExecContext&) override;
  void sum(const Tensor&, const ExecContext&) override;
  SelectionPart selection_part(const std::shared_ptr<const ContextShards>&, const Pattern&,
                               std::int64_t kv_heads) override;

 private:
  class Heads;
  class Layer;
  struct Plans {
    Pattern pattern;
    std::int64_t kv_heads;
    SpanPositions positions;
    std::optional<SplitPattern> split;  // if set, `chunks` are the plans of its branches that stay within chunks
    std::vector<ChunkPlan> chunks;
  };

  void begin(const std::shared_ptr<const ContextShards>& shards);
  // Returns the part of the selection for this process's heads, without its blocks (SelectionPart::chunk).
  SelectionPart part_of_heads(const std::shared_ptr<const ContextShards>&, const Pattern&, std::int64_t kv_heads) const;
  const Plans& plans(const Pattern&, std::int64_t kv_heads, bool dropout);

  ChunkStore store_;
  std::optional<ContextTransfers> ranks_;  // if set, ranks share each chunk
  Keep keep_ = Keep::nothing;
  std::shared_ptr<const ContextShards> shards_;
  std::vector<std::unique_ptr<Plans>> plans_;  // of the patterns seen with these documents
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace ring
