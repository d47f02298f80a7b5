#include "parallel/owned_shard.h"

#include "kernels/elementwise.h"
#include "parallel/ordered_sum.h"

namespace ring {

std::vector<UpdateRange> OwnedShard::runs() const {
  std::vector<UpdateRange> out;
  for (const ShardPiece& p : pieces) {
    const bool decay = p.param->decay, cut = slice.size > 1 && p.param->cut != Cut::none;
    if (!out.empty()) {
      UpdateRange& run = out.back();
      const std::int64_t gap = p.offset - run.first.offset;
      const bool behind = gap == p.shard_offset - run.first.shard_offset && gap < run.numel + kParamAlign;
      if (behind && run.decay == decay && run.cut == cut) {
        run.numel = gap + p.numel;
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
  for (const UpdateRange& run : runs()) cast_kernel({run.of(values), run.of(weights)}, ctx);
}

void sum_replicated(const OwnedShard& h, Communicator& slices, const ExecContext& ctx) {
  std::vector<Tensor> replicated;
  for (const UpdateRange& run : h.runs())
    if (h.slice.size > 1 && !run.cut) replicated.push_back(run.of(h.gradients));
  sum_in_order(replicated, slices, ctx);
}

OwnedShard own_everything(const Parameters& params) {
  OwnedShard h;
  h.slice = params.slice();
  h.pieces = whole_plan(params);
  h.size = params.size();
  h.values = {params.values, true};
  h.weights = {params.weights, true};
  h.gradients = {params.gradients, true};
  return h;
}

}  // namespace ring
