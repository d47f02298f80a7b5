#pragma once
// Block selection for a sequence in chunks (train.sequence_chunk). A chunk selects blocks for its own queries, by one
// row per block (a mean key or an indexer's projection). The rows of all earlier chunks stay on the device. Keys and
// values are fetched only for selected blocks.

#include <vector>

#include "autograd/context_exchange.h"
#include "parallel/context/chunk_store.h"
#include "parallel/context/plan.h"

namespace ring {

// The means that score the blocks of all chunks by content, for one layer and some of its heads.
class ChunkMeans {
 public:
  void clear() { *this = {}; }
  // If the call's pattern selects and the call has no selection, sets one, with a row for each block of the chunk.
  // Stores the chunk's block means for later chunks. Requires that earlier chunks have called it. all: the part of the
  // selection that this process makes. The call may have only some of its heads; their lists get the capacity that all
  // its heads need.
  void select(Attention&, const SelectionPart& all, const ContextShards&, const ExecContext&);

 private:
  // keys_: f32 [blocks,Hk,D]. last_queries_: f32 [chunks,Hk,D], the mean query of each chunk's last block, by which
  // the next query block selects its key blocks.
  Tensor keys_, last_queries_;
};

// The rows of a layer that chunks join (ContextExchange::join_earlier_blocks), such as an indexer's projections.
class JoinedBlocks {
 public:
  void clear() { *this = {}; }
  Tensor join(const Tensor& own, const ChunkBlocks&, const ExecContext&);
  Tensor join_backward(const Tensor& gradient, const ChunkBlocks&, const ExecContext&);

 private:
  Tensor rows_, gradients_;  // [blocks,C]; gradients_: sums over chunks, f32
};

// The union of the blocks that the query blocks and heads of a chunk selected, for each document.
class ChosenBlocks {
 public:
  ChosenBlocks() = default;  // unknown: every block counts as chosen
  // Requires a selection with a row for each block of the chunk. The host waits for it.
  ChosenBlocks(const BlockSelection&, const Pattern&, const ContextShards&, const Stream&);

  // Returns the parts of a message with the rows of chosen blocks. row: elements in a row of its keys.
  ChunkStore::Parts parts_of(const KeyRequest&, const Pattern&, std::int64_t row) const;

 private:
  struct Document {
    std::int32_t first_row;    // as in AttentionCall::block_rows
    std::vector<bool> chosen;  // indexed by block of the document
  };
  bool known_ = false;
  std::vector<Document> documents_;
};

}  // namespace ring
