#include "data/packing.h"

#include "core/check.h"
#include "data/best_fit.h"
#include "data/config.h"

namespace ring {

std::unique_ptr<PackedRows> pack_rows(const TokenSplit& split, std::int64_t context, const PackingConfig& packing) {
  if (packing.best_fit) return std::make_unique<BestFitRows>(split, context, packing.align, packing.best_fit);
  return std::make_unique<RowTable>(split, context, packing.align);
}

RowTable::RowTable(const TokenSplit& split, std::int64_t context, std::int64_t align, std::size_t max_kept)
    : PackedRows(split, context, align) {
  RING_CHECK(max_kept > 1, max_kept, " places kept");
  DocumentStarts starts(split);
  std::uint64_t begin = 0, document = 0;
  const auto count = [&](const PackedPiece& p) { cut_ += !p.ends && p.begin == starts(document); };
  while (begin < split.tokens()) {
    if (rows_ % stride_ == 0) {
      if (begins_.size() == max_kept) {  // drops every second entry, and doubles the stride
        for (std::size_t i = 0; 2 * i < begins_.size(); ++i) begins_[i] = begins_[2 * i];
        begins_.resize((begins_.size() + 1) / 2);
        stride_ *= 2;
      }
      if (rows_ % stride_ == 0) begins_.push_back(begin);
    }
    begin = for_each_piece(starts, begin, split.tokens(), context, align, document, count);
    ++rows_;
  }
}

std::uint64_t RowTable::first_token(std::uint64_t row) const {
  RING_CHECK(row < rows_, "row ", row, " of ", rows_);
  std::uint64_t begin = begins_[row / stride_];
  if (row % stride_ == 0) return begin;
  DocumentStarts starts(split_);
  std::uint64_t document = starts.document_of(begin);
  for (std::uint64_t i = row % stride_; i > 0; --i)
    begin = for_each_piece(starts, begin, split_.tokens(), context_, align_, document, [](const PackedPiece&) {});
  return begin;
}

std::vector<PackedPiece> RowTable::pieces(std::uint64_t row) const {
  const std::uint64_t first = first_token(row);
  DocumentStarts starts(split_);
  std::uint64_t document = starts.document_of(first);
  std::vector<PackedPiece> out;
  for_each_piece(starts, first, split_.tokens(), context_, align_, document,
                 [&](const PackedPiece& piece) { out.push_back(piece); });
  return out;
}

}  // namespace ring
