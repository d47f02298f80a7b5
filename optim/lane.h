#pragma once
// Lanes: the parameters of a process that one kind of optimizer updates. Their elements are consecutive in the lane's
// states, without gaps for parameters that are frozen or updated by other kinds.

#include <memory>
#include <string>
#include <vector>

#include "core/host_chunks.h"
#include "optim/update_rule.h"
#include "parallel/owned_shard.h"

namespace ring {

// Elements [at, at + piece.numel) of a lane.
struct LaneSlice {
  ShardPiece piece;
  std::int64_t at = 0;
};

struct LaneRange {
  UpdateRange range;
  std::int64_t at = 0;
  float lr_scale = 1, weight_decay = 0;
  // Returns the part of the range within elements [begin, begin + count) of the lane; numel is 0 if there is none.
  LaneSlice intersect(std::int64_t begin, std::int64_t count) const;
};

struct Lane {
  std::string kind;
  std::shared_ptr<const UpdateRule> rule;
  std::vector<LaneRange> ranges;
  std::int64_t size = 0;  // elements, including gaps between ranges

  // Returns one piece for each logical parameter in the lane: the rows that this process holds. shard_offset is the
  // offset in the lane.
  std::vector<ShardPiece> pieces() const;
  std::int64_t state_bytes_per_block() const;  // of kParamAlign elements, summed over all states and their scales
  // Returns the offsets at which chunks of the lane may end; empty if they may end anywhere.
  HostChunks::Ends chunk_ends() const;
};

// Returns one lane for each kind of optimizer in the settings; the lane is empty if this process owns no parameters of
// that kind. Throws Error under the same conditions as OwnedShard::ranges().
std::vector<Lane> lanes_of(const OptimizerConfig&, const OwnedShard&, std::uint64_t seed);

}  // namespace ring
