#pragma once
// Best-fit packing of documents, which splits no document that fits into a row (Ding et al., "Fewer Truncations Improve
// Language Modeling", ICML 2024, section 3). Longer documents are split into pieces that fill a whole row each, and a
// remainder; best-fit-decreasing bin packing assigns pieces to rows. One group of consecutive pieces (in the store's
// order) is packed at a time. In a split with pairs of answers, both documents of a pair are packed as one piece.

#include "data/packed_rows.h"

namespace ring {

// Packs pieces of at most `context` tokens into rows: the longest piece first, each into the row with the least free
// space that suffices (of equal rows, the earliest). Sets `at` of each piece. O(n log n).
std::vector<std::vector<PackedPiece>> best_fit(std::vector<PackedPiece> pieces, std::int64_t context,
                                               std::int64_t align);

// Rows in bounded memory: stores where each group begins, and the packed rows of the first groups, up to `max_kept`
// pieces. Other groups are packed again when one of their rows is requested.
class BestFitRows : public PackedRows {
 public:
  // group: number of pieces packed at a time, at least 1. The split must outlive this object. Throws Error if a pair of
  // answers is longer than a row.
  BestFitRows(const TokenSplit&, std::int64_t context, std::int64_t align, std::int64_t group,
              std::size_t max_kept = std::size_t{1} << 21);
  std::vector<PackedPiece> pieces(std::uint64_t row) const override;
  std::size_t kept() const { return kept_.size(); }  // number of groups whose packed rows are stored

 private:
  using Rows = std::vector<std::vector<PackedPiece>>;
  struct Group {
    std::uint64_t row, begin;  // first row and first token of the group
  };
  std::vector<PackedPiece> pack_group(std::uint64_t begin) const;
  std::vector<PackedPiece> pack_pairs(std::uint64_t begin) const;
  std::vector<PackedPiece> documents_of(const std::vector<PackedPiece>& pairs) const;

  std::size_t group_;
  std::vector<Group> groups_;
  std::vector<Rows> kept_;  // packed rows of the first groups
};

}  // namespace ring
