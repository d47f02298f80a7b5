#include "data/best_fit.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "core/check.h"

namespace ring {

std::vector<std::vector<PackedPiece>> best_fit(std::vector<PackedPiece> pieces, std::int64_t context,
                                               std::int64_t align) {
  std::ranges::stable_sort(pieces, std::greater{}, &PackedPiece::length);
  std::vector<std::vector<PackedPiece>> rows;
  // Pairs {number of free tokens, row number}, one for each row with free space.
  std::set<std::pair<std::int64_t, std::size_t>> open;
  for (PackedPiece& piece : pieces) {
    std::pair<std::int64_t, std::size_t> best{context, rows.size()};
    if (const auto found = open.lower_bound({piece.length, 0}); found != open.end())
      best = *found, open.erase(found);
    else
      rows.emplace_back();
    const auto [room, row] = best;
    piece.at = context - room;
    rows[row].push_back(piece);
    const std::int64_t next = (piece.at + piece.length + align - 1) / align * align;
    if (next < context) open.emplace(context - next, row);
  }
  return rows;
}

BestFitRows::BestFitRows(const TokenSplit& split, std::int64_t context, std::int64_t align, std::int64_t group,
                         std::size_t max_kept)
    : PackedRows(split, context, align), group_(static_cast<std::size_t>(group)) {
  RING_CHECK(group > 0, "best fit among ", group, " pieces");
  std::size_t kept = 0;
  for (std::uint64_t begin = 0; begin < split.tokens();) {
    const std::vector<PackedPiece> pieces = pack_group(begin);
    groups_.push_back({rows_, begin});
    begin = pieces.back().begin + static_cast<std::uint64_t>(pieces.back().length);
    Rows rows = best_fit(pieces, context, align);
    rows_ += rows.size();
    if ((kept += pieces.size()) <= max_kept) kept_.push_back(std::move(rows));
  }
  cut_ = documents_longer_than(split, context);
}

// Returns the group_ pieces that start at token `begin`; the last group may have fewer.
std::vector<PackedPiece> BestFitRows::pack_group(std::uint64_t begin) const {
  DocumentStarts starts(split_);
  std::uint64_t document = starts.document_of(begin);
  std::vector<PackedPiece> pieces;
  while (pieces.size() < group_ && begin < split_.tokens()) {
    std::uint64_t stop;
    while ((stop = starts(document + 1)) <= begin) ++document;
    const std::uint64_t length = std::min(stop - begin, static_cast<std::uint64_t>(context_));
    pieces.push_back({begin, 0, static_cast<std::int64_t>(length), begin + length == stop});
    begin += length;
  }
  return pieces;
}

std::vector<PackedPiece> BestFitRows::pieces(std::uint64_t row) const {
  RING_CHECK(row < rows_, "row ", row, " of ", rows_);
  const auto after = std::ranges::upper_bound(groups_, row, {}, &Group::row);
  const auto group = static_cast<std::size_t>(after - groups_.begin()) - 1;
  const auto local = static_cast<std::size_t>(row - groups_[group].row);
  if (group < kept_.size()) return kept_[group][local];
  return best_fit(pack_group(groups_[group].begin), context_, align_)[local];
}

}  // namespace ring
