#pragma once
// Documents packed so that none is cut which fits into a row (Ding et al., "Fewer Truncations Improve Language
// Modeling", ICML 2024, section 3): longer ones become pieces of whole rows and a rest, and best-fit-decreasing bin
// packing finds rows for the pieces. Here some pieces are packed at a time, those that follow in the store's order.

#include "data/packed_rows.h"

namespace ring {

// Puts pieces of at most `context` tokens into rows: the longest first, each into the row with the least room that it
// fits into, the earliest of several. Sets their places; O(n log n).
std::vector<std::vector<PackedPiece>> best_fit(std::vector<PackedPiece> pieces, std::int64_t context,
                                               std::int64_t align);

// In bounded memory: which pieces each group begins with is kept, and the rows of as many groups as have `most_kept`
// pieces; others are packed again when a row is asked for.
class BestFitRows : public PackedRows {
 public:
  // group: pieces packed at a time, at least 1.
  BestFitRows(const TokenSplit&, std::int64_t context, std::int64_t align, std::int64_t group,
              std::size_t most_kept = std::size_t{1} << 21);
  std::vector<PackedPiece> pieces(std::uint64_t row) const override;
  std::size_t kept() const { return kept_.size(); }  // groups

 private:
  using Rows = std::vector<std::vector<PackedPiece>>;
  struct Group {
    std::uint64_t row, begin;  // the first of each: row, token
  };
  std::vector<PackedPiece> group_from(std::uint64_t begin) const;

  std::size_t group_;
  std::vector<Group> groups_;
  std::vector<Rows> kept_;  // of the first groups
};

}  // namespace ring
