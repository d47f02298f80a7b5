#pragma once
// Ownership of parameters by rank (ZeRO, Rajbhandari et al. 2020): only the owner stores their moments and master copy,
// and with ZeRO-2 and 3 their gradients and, between uses, their weights.
//
// Pieces end at logical parameters, so that an optimizer sees whole matrices; only lookup tables, whose rows are
// independent, are split. A vector also has a single owner. Each rank computes the same plan.

#include <cstdint>
#include <vector>

#include "model/params.h"

namespace ring {

struct ShardPiece {
  const Param* param = nullptr;
  std::int64_t first_row = 0, rows = 0;  // rows of the parameter in memory; padding belongs to the piece before it
  std::int64_t offset = 0, numel = 0;    // elements in the flat layout of all parameters
  int owner = 0;
  std::int64_t shard_offset = 0;  // offset in the owner's flat buffers, which hold its pieces in layout order
};

// Returns the pieces in layout order. Matrices whose update costs extra FLOPs are assigned first, each to the rank with
// the fewest FLOPs so far; then the other pieces, each to the rank with the fewest elements; the largest first in both
// cases. Tables then even out the remaining differences. Frozen parameters, which have neither gradients nor moments,
// are assigned separately in the same way.
std::vector<ShardPiece> plan_shards(const Parameters& laid_out, int ranks);

// Returns a plan in which one rank owns everything, at the offsets of the flat layout.
std::vector<ShardPiece> unsharded_plan(const Parameters& laid_out);

std::vector<ShardPiece> pieces_of_rank(const std::vector<ShardPiece>& plan, int rank);
// Return the number of elements in a rank's shard: all of them; those in the first part, which has gradients; and all
// except the encoded weights (Param::encoded), which come last.
std::int64_t shard_size(const std::vector<ShardPiece>& plan, int rank);
std::int64_t trained_size(const std::vector<ShardPiece>& plan, int rank);
std::int64_t encoded_begin(const std::vector<ShardPiece>& plan, int rank);

// A piece split at its logical parameters, each with the padding that follows it.
struct LogicalPiece {
  const LogicalParam* part;
  ShardPiece piece;
};
std::vector<LogicalPiece> logical_pieces(const ShardPiece&);

// The rows of a logical parameter that a piece holds; rows is 0 if there are none.
struct PieceRows {
  std::int64_t first = 0, rows = 0;  // first: counted in the rows that this process holds
  std::int64_t at = 0;               // offset of the first element in the piece
};
PieceRows rows_of(const ShardPiece&, const LogicalParam&);

}  // namespace ring
