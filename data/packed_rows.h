#pragma once
// Rows of `context` tokens that contain pieces of documents. Each piece starts at a multiple of `align` in its row; the
// remaining positions of a row are padding.

#include <cstdint>
#include <vector>

#include "data/token_store.h"

namespace ring {

// Consecutive tokens of one document in a row.
struct PackedPiece {
  std::uint64_t begin;         // first token in the split
  std::int64_t at, length;     // position in the row, and number of tokens
  bool ends;                   // true if the piece ends its document, so that its last token has no target
  std::uint64_t document = 0;  // number of the document in the split; set only in splits with pairs of answers
};

// Returns the number of documents with more than `context` tokens, which every packing has to split.
std::uint64_t documents_longer_than(const TokenSplit&, std::int64_t context);

// The packed rows of a split; each token occurs in exactly one row. Thread-safe.
class PackedRows {
 public:
  virtual ~PackedRows() = default;
  // Returns at least one piece, sorted by position.
  virtual std::vector<PackedPiece> pieces(std::uint64_t row) const = 0;
  std::uint64_t rows() const { return rows_; }
  double filled_share() const;                          // fraction of row positions that contain a token
  std::uint64_t cut_documents() const { return cut_; }  // number of documents that are split into several pieces

 protected:
  PackedRows(const TokenSplit& split, std::int64_t context, std::int64_t align);

  const TokenSplit& split_;
  const std::int64_t context_, align_;
  std::uint64_t rows_ = 0, cut_ = 0;
};

}  // namespace ring
