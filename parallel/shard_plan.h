#pragma once
// Which rank owns what of the parameters (ZeRO, Rajbhandari et al. 2020): it alone keeps their moments, their master
// copy, and with ZeRO-2 and 3 their gradients and weights between uses.
//
// Pieces end on boundaries of logical parameters, so that an optimizer sees whole matrices; only lookup tables, whose
// rows are independent, are cut. Every vector has an owner, too: none is kept twice. Each rank computes the same plan.

#include <cstdint>
#include <vector>

#include "model/params.h"

namespace ring {

struct ShardPiece {
  const Param* param = nullptr;
  std::int64_t first_row = 0, rows = 0;  // of the parameter in memory; padding belongs to the piece that it follows
  std::int64_t offset = 0, numel = 0;    // in the flat layout of all parameters
  int owner = 0;
  std::int64_t shard_offset = 0;  // in the owner's flat buffers, which hold its pieces in layout order
};

// In layout order. Matrices whose update costs FLOPs of its own go first, each to the rank that has least to compute;
// then the other pieces, each to the rank that has least to keep; tables then level what is left. Of both, the largest
// go first.
// What is frozen has neither gradients nor moments, and is shared in the same way by itself.
std::vector<ShardPiece> plan_shards(const Parameters& laid_out, int ranks);

// A plan in which one rank has everything, at the places of the flat layout.
std::vector<ShardPiece> whole_plan(const Parameters& laid_out);

std::vector<ShardPiece> pieces_of_rank(const std::vector<ShardPiece>&, int rank);
// Elements of a rank's flat buffers; of those that have gradients, which come first.
std::int64_t shard_size(const std::vector<ShardPiece>&, int rank);
std::int64_t trained_size(const std::vector<ShardPiece>&, int rank);

// The same piece cut at its logical parameters, each with the padding that follows it.
struct LogicalPiece {
  const LogicalParam* part;
  ShardPiece piece;
};
std::vector<LogicalPiece> logical_pieces(const ShardPiece&);

// The rows of a logical parameter that a piece holds; rows = 0: none.
struct PieceRows {
  std::int64_t first = 0, rows = 0;  // first: counted in what this process holds of the logical parameter
  std::int64_t at = 0;               // of their first element, counted in the piece
};
PieceRows rows_of(const ShardPiece&, const LogicalParam&);

}  // namespace ring
