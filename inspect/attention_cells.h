#pragma once
// The pairs that a pattern keeps of a sequence, in a grid of cells: what pictures are made of. The cost follows the
// length and the cells, not the pairs; block patterns cost one look at each of their blocks, and branches with windows
// one at each sample that a query sees.

#include <cstdint>
#include <vector>

#include "kernels/attention/pattern.h"

namespace ring {

// What a cell's sum is a share of.
enum class CellWhole : std::uint8_t {
  pairs,    // of the pairs that are possible: the sum counts those that are kept
  queries,  // of its queries: the sum is of the weights that they give to its keys
};

// Cell (i, j) holds queries [i size, (i + 1) size) and keys [j size, (j + 1) size) of a causal sequence.
class PairCells {
 public:
  // size: the smallest power of two with at most so many cells on a side.
  PairCells(std::int64_t length, std::int64_t most_cells, CellWhole whole = CellWhole::pairs);

  CellWhole whole() const { return whole_; }
  std::int64_t length() const { return length_; }
  std::int64_t size() const { return size_; }
  std::int64_t side() const { return side_; }

  double& kept(std::int64_t i, std::int64_t j) { return kept_[static_cast<std::size_t>(i * side_ + j)]; }
  double kept(std::int64_t i, std::int64_t j) const { return kept_[static_cast<std::size_t>(i * side_ + j)]; }
  double possible(std::int64_t i, std::int64_t j) const;  // the most: pairs with key <= query, or queries
  // What the rows [i, i_end) of column j hold, as a share of the most; -1: they hold nothing.
  double share(std::int64_t i, std::int64_t i_end, std::int64_t j) const;

  PairCells coarser(std::int64_t most_cells) const;

 private:
  std::int64_t tokens(std::int64_t i) const;
  std::int64_t length_, size_, side_;
  CellWhole whole_;
  std::vector<double> kept_;
};

// A pair counts once, however many branches have it; a pool of p tokens as a share of 1 / p of a pair with each of
// them. The pattern must be causal.
PairCells cells_of(const Pattern&, std::int32_t kv_head, std::int64_t length, std::int64_t most_cells);

}  // namespace ring
