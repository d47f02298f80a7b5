#pragma once
// Divides a row of tokens among ranks by attention pairs instead of by position.

#include <cstdint>
#include <vector>

#include "kernels/attention/pattern.h"

namespace ring {

// Divides blocks, given in order with the work of each, among ranks. Each rank gets the same number of blocks and
// nearly the mean work. Returns each rank's block numbers, ascending. All ranks together have at most 2 * ranks - 1
// runs of consecutive blocks. Throws Error if the number of ranks does not divide the number of blocks.
std::vector<std::vector<std::int64_t>> divide_evenly(const std::vector<double>& work, int ranks);

// Counter of the (query, key) pairs that a model's layers compute, per block of queries.
class PairCounter {
 public:
  // layers: the pattern of each layer. Each layer has kv_heads KV heads.
  PairCounter(const std::vector<Pattern>& layers, std::int64_t kv_heads);
  // Returns, for each block of `block` tokens in a row, the number of pairs of its queries, summed over all layers and
  // averaged over the heads. `length` must be a multiple of `block`. documents: sorted, with rows counted from the
  // start of the row.
  std::vector<double> pairs_by_block(const std::vector<Span>& documents, std::int64_t length, std::int64_t block) const;

 private:
  struct Layers {
    Pattern pattern;
    double count;  // number of layers with this pattern
  };
  std::vector<Layers> layers_;
  std::int64_t kv_heads_;
};

}  // namespace ring
