#pragma once
// The cache of a layer with an indexer, for generation: the indexer's projection of each complete block, and the inputs
// of the newest block.

#include "model/attention/learned/indexer.h"

namespace ring {

class IndexCache {
 public:
  // Creates a cache for `batch` sequences of at most `capacity` tokens, in blocks of `block` tokens.
  IndexCache(std::int64_t batch, std::int64_t capacity, std::int32_t block)
      : batch_(batch), capacity_(capacity), block_(block) {}

  // Appends the layer's inputs (x [N,C]) of new tokens to each sequence, after its `lengths[b]` tokens: any number of
  // tokens if lengths[b] is 0, else one.
  void append(const Indexer&, const Tensor& x, const Sequences&, const std::vector<std::int32_t>& lengths,
              const ExecContext&);
  // Returns the scores of all key blocks, f32 [batch,Hk,blocks]. Row b has the scores for the current query block of
  // sequence b.
  Tensor scores(const Indexer&, std::vector<SelectedRows> documents, const ExecContext&) const;
  std::int64_t max_blocks() const { return (capacity_ + block_ - 1) / block_; }

 private:
  void allocate(const Indexer&, const Tensor& x, const ExecContext&);
  // Projects block means [n,C] and stores them in these rows of projected_.
  void store_means(const Indexer&, const Tensor& means, const std::vector<std::int64_t>& rows, const ExecContext&);

  std::int64_t batch_, capacity_;
  std::int32_t block_;
  Tensor newest_;     // [batch,block,C]: token t in row t % block
  Tensor projected_;  // [batch * maximum blocks, width]
};

}  // namespace ring
