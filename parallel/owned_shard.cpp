#include "parallel/owned_shard.h"

#include <algorithm>

#include "parallel/ordered_sum.h"

namespace ring {

UpdateRange UpdateRange::within(std::int64_t begin, std::int64_t n) const {
  const std::int64_t here = first.shard_offset, from = std::max(here, begin), to = std::min(here + numel, begin + n);
  UpdateRange part = *this;
  part.numel = std::max<std::int64_t>(0, to - from);
  part.first.offset += from - here;
  part.first.shard_offset = from;
  return part;
}

std::vector<UpdateRange> OwnedShard::ranges(const std::function<std::size_t(const Param&)>& group_of) const {
  std::vector<UpdateRange> out;
  for (const ShardPiece& p : pieces) {
    const bool decay = p.param->decay, cut = slice.size > 1 && p.param->cut != Cut::none;
    const std::size_t group = group_of ? group_of(*p.param) : 0;
    if (!out.empty()) {
      UpdateRange& range = out.back();
      const std::int64_t gap = p.offset - range.first.offset;
      const bool behind = gap == p.shard_offset - range.first.shard_offset && gap < range.numel + kParamAlign;
      if (behind && range.decay == decay && range.cut == cut && range.group == group) {
        range.numel = gap + p.numel;
        continue;
      }
    }
    out.push_back({p, p.numel, decay, cut, group});
  }
  return out;
}

void OwnedShard::initialise(std::uint64_t seed, const ExecContext& ctx) const {
  for (const ShardPiece& p : pieces) {
    const Tensor value = values.of(p);
    const std::int64_t columns = p.numel / p.rows;
    for (const LogicalParam& part : p.param->parts) {
      const PieceRows r = rows_of(p, part);
      if (!r.rows) continue;
      const Tensor rows = value.narrow(0, r.at, r.rows * columns);
      ring::initialise(p.param->shape.size() == 2 ? rows.view({r.rows, columns}) : rows, part, r.first, seed, ctx);
    }
  }
  refresh_weights(ctx);
}

void OwnedShard::refresh_weights(const ExecContext& ctx) const {
  if (!copies()) return;
  for (const UpdateRange& range : ranges()) copy_values(range.of(values), range.of(weights), ctx);
}

void sum_replicated(const OwnedShard& shard, Communicator& slices, const ExecContext& ctx) {
  std::vector<Tensor> replicated;
  for (const UpdateRange& range : shard.ranges())
    if (shard.slice.size > 1 && !range.cut) replicated.push_back(range.of(shard.gradients));
  sum_in_order(replicated, slices, ctx);
}

OwnedShard own_everything(const Parameters& params) {
  OwnedShard shard;
  shard.slice = params.slice();
  shard.pieces = whole_plan(params);
  shard.size = params.size();
  shard.values = {params.values, true};
  shard.weights = {params.weights, true};
  shard.gradients = {params.gradients, true};
  return shard;
}

}  // namespace ring
