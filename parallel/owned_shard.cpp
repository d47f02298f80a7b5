#include "parallel/owned_shard.h"

#include "kernels/elementwise.h"
#include "parallel/ordered_sum.h"

namespace ring {

std::vector<UpdateRange> OwnedShard::ranges() const {
  std::vector<UpdateRange> out;
  for (const ShardPiece& p : pieces) {
    const bool decay = p.param->decay, cut = slice.size > 1 && p.param->cut != Cut::none;
    if (!out.empty()) {
      UpdateRange& range = out.back();
      const std::int64_t gap = p.offset - range.first.offset;
      const bool behind = gap == p.shard_offset - range.first.shard_offset && gap < range.numel + kParamAlign;
      if (behind && range.decay == decay && range.cut == cut) {
        range.numel = gap + p.numel;
        continue;
      }
    }
    out.push_back({p, p.numel, decay, cut});
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
  for (const UpdateRange& range : ranges()) cast_kernel({range.of(values), range.of(weights)}, ctx);
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
