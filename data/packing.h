#pragma once
// How the documents of a split are packed into rows (data/packed_rows.h).

#include <algorithm>
#include <memory>

#include "data/packed_rows.h"

namespace ring {

struct PackingConfig;

// As the settings say (data/config.h). The split lives as long. Reads where all documents start.
std::unique_ptr<PackedRows> pack_rows(const TokenSplit&, std::int64_t context, const PackingConfig&);

// fn(piece) for the pieces of a row that begins with token `begin` and takes none from `end` on; where the next row
// begins. `document` must not lie behind the one that `begin` belongs to, and is moved along.
template <class Fn>
std::uint64_t for_pieces(DocumentStarts& starts, std::uint64_t begin, std::uint64_t end, std::int64_t context,
                         std::int64_t align, std::uint64_t& document, const Fn& fn) {
  for (std::int64_t at = 0; at < context && begin < end;) {
    std::uint64_t stop;
    while ((stop = starts(document + 1)) <= begin) ++document;  // empty documents, too
    const std::int64_t length =
        static_cast<std::int64_t>(std::min({stop - begin, end - begin, static_cast<std::uint64_t>(context - at)}));
    fn(PackedPiece{begin, at, length, begin + static_cast<std::uint64_t>(length) == stop});
    begin += static_cast<std::uint64_t>(length);
    at = (at + length + align - 1) / align * align;
  }
  return begin;
}

// In order: a row takes documents in the store's order until it is full; what does not fit of the last one begins the
// next row as a piece of its own. In bounded memory: the places of every so many rows are kept, those between are
// walked to.
class RowTable : public PackedRows {
 public:
  RowTable(const TokenSplit&, std::int64_t context, std::int64_t align, std::size_t most_kept = std::size_t{1} << 20);
  std::vector<PackedPiece> pieces(std::uint64_t row) const override;
  std::uint64_t begin(std::uint64_t row) const;  // its first token
  std::size_t kept() const { return begins_.size(); }

 private:
  std::uint64_t stride_ = 1;
  std::vector<std::uint64_t> begins_;  // of rows 0, stride_, 2 stride_, ..
};

}  // namespace ring
