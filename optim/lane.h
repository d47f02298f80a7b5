#pragma once
// Lanes: what one kind of optimizer updates of what a process owns. Its elements lie one behind the other in its
// states, which have no room for those of other kinds and for what is frozen.

#include <memory>
#include <string>
#include <vector>

#include "core/host_chunks.h"
#include "optim/update_rule.h"
#include "parallel/owned_shard.h"

namespace ring {

// Elements [at, at + what.numel) of a lane.
struct LaneStretch {
  ShardPiece what;
  std::int64_t at = 0;
};

struct LaneRange {
  UpdateRange range;
  std::int64_t at = 0;
  float lr_scale = 1, weight_decay = 0;
  // What of it lies in elements [begin, begin + n) of the lane; numel = 0: nothing.
  LaneStretch within(std::int64_t begin, std::int64_t n) const;
};

struct Lane {
  std::string kind;
  std::shared_ptr<const UpdateRule> rule;
  std::vector<LaneRange> ranges;
  std::int64_t size = 0;  // in elements, with the gaps between ranges

  // Its logical parameters, or the rows that are here, with their places in the lane as shard_offset.
  std::vector<ShardPiece> pieces() const;
  std::int64_t state_bytes() const;  // of one element
  // Where chunks of it may end; none: anywhere.
  HostChunks::Ends ends() const;
};

// One for every kind that the settings name, also where this process owns nothing of it. Error as
// OwnedShard::ranges().
std::vector<Lane> lanes_of(const OptimizerConfig&, const OwnedShard&, std::uint64_t seed);

}  // namespace ring
