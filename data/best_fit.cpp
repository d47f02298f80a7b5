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
  if (split.pairs() && align > 1)
    fail("data.packing.align: ", align, " is not supported with the pairs of answers in ", split.name(),
         ". Set it to 1");
  std::size_t kept = 0;
  for (std::uint64_t begin = 0; begin < split.tokens();) {
    const std::vector<PackedPiece> pieces = pack_group(begin);
    groups_.push_back({rows_, begin});
    begin = pieces.back().begin + static_cast<std::uint64_t>(pieces.back().length);
    Rows rows = best_fit(pieces, context, align);
    rows_ += rows.size();
    if ((kept += pieces.size()) <= max_kept) kept_.push_back(std::move(rows));
  }
  if (!split.pairs()) cut_ = documents_longer_than(split, context);
}

// Returns the group_ pieces that start at token `begin`; the last group may have fewer.
std::vector<PackedPiece> BestFitRows::pack_group(std::uint64_t begin) const {
  if (split_.pairs()) return pack_pairs(begin);
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

// Same as pack_group(), with both documents of a pair as one piece.
std::vector<PackedPiece> BestFitRows::pack_pairs(std::uint64_t begin) const {
  DocumentStarts starts(split_);
  std::vector<PackedPiece> pieces;
  for (std::uint64_t first = starts.document_of(begin); pieces.size() < group_ && begin < split_.tokens(); first += 2) {
    if (first + 1 >= split_.documents() || starts(first + 1) == begin || starts(first + 2) == starts(first + 1))
      fail(split_.name(), ": pair ", first / 2, " has an answer without tokens. Prepare the corpus again");
    const std::uint64_t stop = starts(first + 2), length = stop - begin;
    if (length > static_cast<std::uint64_t>(context_))
      fail(split_.name(), ": pair ", first / 2, " has ", starts(first + 1) - begin, " tokens with the chosen and ",
           stop - starts(first + 1), " with the rejected answer, together ", length, ", but model.context is ",
           context_, ". Raise model.context, or remove the record and prepare the corpus again");
    pieces.push_back({begin, 0, static_cast<std::int64_t>(length), true, first});
    begin = stop;
  }
  return pieces;
}

// Splits each pair of a row into its two documents.
std::vector<PackedPiece> BestFitRows::documents_of(const std::vector<PackedPiece>& pairs) const {
  std::vector<PackedPiece> out;
  for (const PackedPiece& pair : pairs) {
    const auto chosen = static_cast<std::int64_t>(split_.document_start(pair.document + 1) - pair.begin);
    out.push_back({pair.begin, pair.at, chosen, true, pair.document});
    out.push_back({pair.begin + static_cast<std::uint64_t>(chosen), pair.at + chosen, pair.length - chosen, true,
                   pair.document + 1});
  }
  return out;
}

std::vector<PackedPiece> BestFitRows::pieces(std::uint64_t row) const {
  RING_CHECK(row < rows_, "row ", row, " of ", rows_);
  const auto after = std::ranges::upper_bound(groups_, row, {}, &Group::row);
  const auto group = static_cast<std::size_t>(after - groups_.begin()) - 1;
  const auto local = static_cast<std::size_t>(row - groups_[group].row);
  const auto row_of = [&] { return best_fit(pack_group(groups_[group].begin), context_, align_)[local]; };
  const std::vector<PackedPiece> pieces = group < kept_.size() ? kept_[group][local] : row_of();
  return split_.pairs() ? documents_of(pieces) : pieces;
}

}  // namespace ring
