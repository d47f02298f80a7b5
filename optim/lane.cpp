#include "optim/lane.h"

#include <algorithm>

#include "optim/groups.h"
#include "optim/kinds.h"

namespace ring {
namespace {

std::vector<std::string> kinds_in(const OptimizerConfig& c) {
  std::vector<std::string> all{c.kind};
  for (const GroupConfig& group : c.groups)
    if (group.kind) all.push_back(*group.kind);
  all.emplace_back(kElementKind);  // updates what the other kinds do not take
  std::ranges::sort(all);
  const auto duplicates = std::ranges::unique(all);
  all.erase(duplicates.begin(), duplicates.end());
  return all;
}

}  // namespace

LaneSlice LaneRange::intersect(std::int64_t begin, std::int64_t n) const {
  const std::int64_t from = std::max(at, begin), to = std::min(at + range.numel, begin + n);
  // The slice is the range's first piece, moved and cut: its offsets are those of the slice's first element.
  LaneSlice part{range.first, from};
  part.piece.numel = std::max<std::int64_t>(0, to - from);
  part.piece.offset += from - at;
  part.piece.shard_offset += from - at;
  return part;
}

std::vector<ShardPiece> Lane::pieces() const {
  std::vector<ShardPiece> out;
  for (const LaneRange& r : ranges)
    for (const LogicalPiece& logical : r.range.pieces) {
      ShardPiece piece = logical.piece;
      piece.shard_offset = r.at + piece.offset - r.range.first.offset;  // the lane keeps the distances within a range
      out.push_back(piece);
    }
  return out;
}

std::int64_t Lane::state_bytes_per_element() const {
  std::int64_t bytes = 0;
  for (const StateKind& kind : rule->states()) bytes += static_cast<std::int64_t>(size_of(kind.type));
  return bytes;
}

// For a matrix rule, chunks may end only between two matrices, where the second one is aligned for kernels.
HostChunks::Ends Lane::chunk_ends() const {
  HostChunks::Ends ends;
  if (!rule->is_matrix_rule()) return ends;
  for (const ShardPiece& p : pieces())
    if (p.shard_offset > 0 && p.shard_offset % kParamAlign == 0) ends.push_back(p.shard_offset);
  if (size > 0) ends.push_back(size);
  return ends;
}

std::vector<Lane> lanes_of(const OptimizerConfig& c, const OwnedShard& shard, std::uint64_t seed) {
  std::vector<Lane> lanes;
  for (const std::string& kind : kinds_in(c)) lanes.push_back({kind, optimizer_kind(kind)(c, seed)});
  const auto lane_of = [&](const Param& p, const LogicalParam& part) {
    return static_cast<std::size_t>(std::ranges::find(lanes, optimizer_kind_of(c, p, part), &Lane::kind) -
                                    lanes.begin());
  };
  // All elements of a range have one group and one kind.
  const auto key = [&](const Param& p, const LogicalParam& part) {
    return part.group * lanes.size() + lane_of(p, part);
  };
  for (const UpdateRange& range : shard.ranges(key)) {
    if (range.frozen) continue;
    const LogicalParam& part = *range.pieces.front().part;
    Lane& lane = lanes[lane_of(*range.first.param, part)];
    lane.ranges.push_back({range, lane.size, lr_scale_of(c, part), weight_decay_of(c, *range.first.param, part)});
    lane.size += param_aligned(range.numel);
  }
  return lanes;
}

}  // namespace ring
