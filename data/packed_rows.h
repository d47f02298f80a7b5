#pragma once
// Rows of `context` tokens that hold pieces of documents. Each starts at a multiple of `align` in its row; what is left
// of a row is padding.

#include <cstdint>
#include <vector>

#include "data/token_store.h"

namespace ring {

// A stretch of one document in a row.
struct PackedPiece {
  std::uint64_t begin;      // of its tokens in the split
  std::int64_t at, length;  // in the row
  bool ends;                // its document ends with it: no target for its last token
};

// Counts the documents with more than `context` tokens, which every way of packing has to cut.
std::uint64_t documents_longer_than(const TokenSplit&, std::int64_t context);

// The rows of a split, which hold every token once. To be asked from several threads.
class PackedRows {
 public:
  virtual ~PackedRows() = default;
  virtual std::vector<PackedPiece> pieces(std::uint64_t row) const = 0;  // by their places; at least one
  std::uint64_t rows() const { return rows_; }
  double filled() const;                                // share of the rows' places that hold a token
  std::uint64_t cut_documents() const { return cut_; }  // in several pieces

 protected:
  PackedRows(const TokenSplit& split, std::int64_t context, std::int64_t align);

  const TokenSplit& split_;
  const std::int64_t context_, align_;
  std::uint64_t rows_ = 0, cut_ = 0;
};

}  // namespace ring
