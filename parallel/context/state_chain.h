#pragma once
// Passes states along documents that are divided among the ranks of a group, among the chunks of a sequence
// (train.sequence_chunk), or among both: ranks pass them within a chunk, and a store keeps them between chunks.
//
// A run is a range of adjacent rows on one rank (LocalRows), with chunks a range within the current chunk. A link is a
// boundary between two runs that a document crosses. The part after a link starts from the state after the part before
// the link, and waits for it. The depth of a link is the number of links that must carry a state before it.

#include <cstdint>
#include <vector>

#include "autograd/context_exchange.h"

namespace ring {

class ChunkStore;
class ContextTransfers;

class DocumentStates final : public StateChain {
 public:
  // ranks: null if one process has all rows of a chunk. store: null without chunks. Both must outlive this object.
  explicit DocumentStates(ContextTransfers* ranks, ChunkStore* store = nullptr, std::int64_t layer = 0)
      : ranks_(ranks), store_(store), layer_(layer) {}
  // Says whether forward() stores the states after a chunk for the next one.
  void set_keeps(bool keeps) { keeps_ = keeps; }

  std::vector<StatePart> parts(const ContextShards&) const override;
  // In the forward, ranks exchange the states of all links of depth 0, then of depth 1, and so on; in the backward,
  // from the greatest depth to 0. A state depends only on links of smaller depth (in the backward, of greater depth),
  // so a rank already has the states that it sends. All ranks know all links, so they make the same exchanges in the
  // same order and cannot deadlock. While the first exchange runs, a rank computes the parts that do not wait.
  void forward(const StatePass&, const ContextShards&, const ExecContext&) override;
  void backward(const StatePass&, const ContextShards&, const ExecContext&) override;

 private:
  class Pass;
  ContextTransfers* ranks_;
  ChunkStore* store_;
  std::int64_t layer_;
  bool keeps_ = false;
};

}  // namespace ring
