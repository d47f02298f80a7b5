#pragma once
// What generation keeps of a layer with an indexer: of each block that is whole what the indexer makes of it, and the
// inputs of the newest block.

#include "model/indexer.h"

namespace ring {

class IndexCache {
 public:
  // For `batch` sequences of at most `capacity` tokens, in blocks of so many.
  IndexCache(std::int64_t batch, std::int64_t capacity, std::int32_t block)
      : batch_(batch), capacity_(capacity), block_(block) {}

  // Takes the layer's inputs (x [N,C]) of tokens that come behind the `lengths[b]` of each sequence: any number of
  // tokens where that is 0, else one.
  void append(const Indexer&, const Tensor& x, const Sequences&, const std::vector<std::int32_t>& lengths,
              const ExecContext&);
  // f32 [batch,Hk,blocks]: the scores of one block of each sequence that a selection is to be made for, in row b.
  Tensor scores(const Indexer&, std::vector<SelectedRows> documents, const ExecContext&) const;
  std::int64_t most_blocks() const { return (capacity_ + block_ - 1) / block_; }

 private:
  void allocate(const Indexer&, const Tensor& x, const ExecContext&);
  // Projects means [n,C] of blocks, which go to these rows.
  void keep(const Indexer&, const Tensor& means, const std::vector<std::int64_t>& rows, const ExecContext&);

  std::int64_t batch_, capacity_;
  std::int32_t block_;
  Tensor newest_;     // [batch,block,C]: token t in row t % block
  Tensor projected_;  // [batch * most blocks, width]
};

}  // namespace ring
