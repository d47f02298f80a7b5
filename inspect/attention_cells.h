#pragma once
// Sums the pairs of a sequence that a pattern keeps in a grid of cells, for pictures. The cost grows with the length
// and the number of cells, not with the number of pairs. However, a block pattern is tested once per block, and
// branches with windows visit each sample that a query sees.

#include <cstdint>
#include <vector>

#include "kernels/attention/pattern.h"

namespace ring {

// Selects the maximum of a cell's sum, by which kept_share() divides the sum.
enum class CellWhole : std::uint8_t {
  pairs,    // possible pairs of the cell; the sum counts the kept pairs
  queries,  // queries of the cell; the sum adds the weights that these queries give to the cell's keys
};

// A grid of cells over a causal sequence: cell (i, j) covers queries [i * size, (i + 1) * size) and keys
// [j * size, (j + 1) * size).
class PairCells {
 public:
  // The cell size is the smallest power of two that needs at most max_cells cells per side.
  PairCells(std::int64_t length, std::int64_t max_cells, CellWhole whole = CellWhole::pairs);

  CellWhole whole() const { return whole_; }
  std::int64_t length() const { return length_; }
  std::int64_t size() const { return size_; }
  std::int64_t side() const { return side_; }

  double& kept(std::int64_t i, std::int64_t j) { return kept_[static_cast<std::size_t>(i * side_ + j)]; }
  double kept(std::int64_t i, std::int64_t j) const { return kept_[static_cast<std::size_t>(i * side_ + j)]; }
  // Returns the maximum of kept(i, j): the number of pairs with key <= query, or for CellWhole::queries the number of
  // queries.
  double max_kept(std::int64_t i, std::int64_t j) const;
  // Returns the sum of cells [i, i_end) in column j, divided by its maximum; -1 if these cells are above the diagonal.
  double kept_share(std::int64_t i, std::int64_t i_end, std::int64_t j) const;

  // Merges cells until there are at most max_cells per side.
  PairCells coarsened(std::int64_t max_cells) const;

 private:
  std::int64_t tokens(std::int64_t i) const;
  std::int64_t length_, size_, side_;
  CellWhole whole_;
  std::vector<double> kept_;
};

// Returns the kept pairs by cell. A pair counts once even if several branches keep it. For a pool of p tokens, the pair
// with each of its tokens counts as 1/p. Requires a causal pattern.
PairCells cells_of(const Pattern&, std::int32_t kv_head, std::int64_t length, std::int64_t max_cells);

}  // namespace ring
