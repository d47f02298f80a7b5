#pragma once
// Packing of a split's documents into rows (data/packed_rows.h).

#include <algorithm>
#include <memory>

#include "data/packed_rows.h"

namespace ring {

struct PackingConfig;

// Packs rows as configured (data/config.h). Reads all document starts. The split must outlive the result.
std::unique_ptr<PackedRows> pack_rows(const TokenSplit&, std::int64_t context, const PackingConfig&);

// Calls fn(piece) for the pieces of the row that begins with token `begin`, excluding tokens from `end` on; returns the
// first token of the next row. `document` must not be later than the document of `begin`; it is advanced.
template <class Fn>
std::uint64_t for_each_piece(DocumentStarts& starts, std::uint64_t begin, std::uint64_t end, std::int64_t context,
                             std::int64_t align, std::uint64_t& document, const Fn& fn) {
  for (std::int64_t at = 0; at < context && begin < end;) {
    std::uint64_t stop;
    while ((stop = starts(document + 1)) <= begin) ++document;  // also skips empty documents
    const std::int64_t length =
        static_cast<std::int64_t>(std::min({stop - begin, end - begin, static_cast<std::uint64_t>(context - at)}));
    fn(PackedPiece{begin, at, length, begin + static_cast<std::uint64_t>(length) == stop});
    begin += static_cast<std::uint64_t>(length);
    at = (at + length + align - 1) / align * align;
  }
  return begin;
}

// Rows in the store's order: a row takes documents until it is full; the rest of its last document begins the next row
// as a separate piece. Uses bounded memory: stores the first token of every stride_-th row and computes the rows
// between.
class RowTable : public PackedRows {
 public:
  RowTable(const TokenSplit&, std::int64_t context, std::int64_t align, std::size_t max_kept = std::size_t{1} << 20);
  std::vector<PackedPiece> pieces(std::uint64_t row) const override;
  std::uint64_t first_token(std::uint64_t row) const;  // first token of the row
  std::size_t kept() const { return begins_.size(); }

 private:
  std::uint64_t stride_ = 1;
  std::vector<std::uint64_t> begins_;  // first tokens of rows 0, stride_, 2 stride_, ...
};

}  // namespace ring
