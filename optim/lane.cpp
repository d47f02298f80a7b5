#include "optim/lane.h"

#include <algorithm>

#include "checkpoint/fp8_tensors.h"
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

// Throws Error unless parameters with fp8 states consist of blocks, in memory and in checkpoints.
void check_blocks(const Lane& lane, const UpdateRange& range) {
  const std::vector<StateKind> states = lane.rule->states();
  if (std::ranges::none_of(states, [](const StateKind& kind) { return kind.fp8.has_value(); })) return;
  for (const auto& [part, piece] : range.pieces) {
    const PieceRows rows = rows_of(piece, *part);
    Shape start = part->start, size{rows.rows};
    start[0] += rows.first;
    if (part->whole.size() == 2) size = {rows.rows, piece.numel / piece.rows};
    if (piece.offset % kMomentBlock || !is_made_of_blocks(part->whole, start, size))
      fail("optimizer.moments: fp8: ", part->name, " does not consist of blocks of ", kMomentBlock,
           " elements in memory: this process has ", size, " of ", part->whole, " elements at ", start,
           ". Set optimizer.moments to bf16 or fp32, lower parallel.tp, or use model sizes that are multiples of ",
           kMomentBlock);
  }
}

}  // namespace

LaneSlice LaneRange::intersect(std::int64_t begin, std::int64_t n) const {
  const std::int64_t from = std::max(at, begin), to = std::min(at + range.numel, begin + n);
  // The slice is the range's first piece, shifted and shortened: its offsets are those of the slice's first element.
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
      piece.shard_offset = r.at + piece.offset - r.range.first.offset;  // the lane keeps the offsets within a range
      out.push_back(piece);
    }
  return out;
}

std::int64_t Lane::state_bytes_per_block() const {
  std::int64_t bytes = 0;
  for (const StateKind& kind : rule->states())
    bytes += kParamAlign * static_cast<std::int64_t>(size_of(kind.type)) + (kind.fp8 ? 1 : 0);
  return bytes;
}

// For a matrix rule, chunks may end only between two matrices, and only if the second matrix is aligned for kernels.
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
  // All elements of a range belong to one group and have one update kind.
  const auto key = [&](const Param& p, const LogicalParam& part) {
    return part.group * lanes.size() + lane_of(p, part);
  };
  for (const UpdateRange& range : shard.ranges(key)) {
    if (range.frozen) continue;
    const LogicalParam& part = *range.pieces.front().part;
    Lane& lane = lanes[lane_of(*range.first.param, part)];
    check_blocks(lane, range);
    lane.ranges.push_back({range, lane.size, lr_scale_of(c, part), weight_decay_of(c, *range.first.param, part)});
    lane.size += param_aligned(range.numel);
  }
  return lanes;
}

}  // namespace ring
