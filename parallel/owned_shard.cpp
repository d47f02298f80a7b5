#include "parallel/owned_shard.h"

#include <algorithm>

#include "parallel/ordered_sum.h"

namespace ring {

namespace {

bool lies_behind(const UpdateRange& range, const ShardPiece& p) {
  const std::int64_t gap = p.offset - range.first.offset;
  return gap == p.shard_offset - range.first.shard_offset && gap < range.numel + kParamAlign;
}

bool alike(const UpdateRange& a, const UpdateRange& b) {
  return a.decay == b.decay && a.cut == b.cut && a.frozen == b.frozen && a.key == b.key &&
         a.first.param->encoded == b.first.param->encoded;
}

}  // namespace

std::vector<UpdateRange> OwnedShard::ranges(const RangeKey& key_of) const {
  std::vector<UpdateRange> out;
  for (const ShardPiece& whole : pieces)
    for (const auto& [part, p] : logical_pieces(whole)) {
      const bool cut = slice.size > 1 && p.param->placement.cut != Cut::none;
      const UpdateRange next{
          p, p.numel, p.param->decay, cut, part->frozen, key_of ? key_of(*p.param, *part) : 0, {{part, p}}};
      if (!out.empty() && lies_behind(out.back(), p) && alike(out.back(), next)) {
        out.back().numel = p.offset - out.back().first.offset + p.numel;
        out.back().pieces.push_back({part, p});
        continue;
      }
      if (p.offset % kParamAlign)
        fail(part->name, " does not start at a multiple of ", kParamAlign, " numbers in memory, where it follows ",
             p.param->parts[0].name,
             ". Both must be updated in the same way. Put them into one group (optimizer.groups)");
      out.push_back(next);
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
  if (!separate_master()) return;
  for (const UpdateRange& range : ranges())
    if (!range.first.param->encoded) copy_values_to_weights(range.of(values), range.of(weights), ctx);
}

void sum_replicated(const OwnedShard& shard, Communicator& slices, const ExecContext& ctx) {
  std::vector<Tensor> replicated;
  for (const UpdateRange& range : shard.ranges())
    if (shard.slice.size > 1 && !range.cut && !range.frozen) replicated.push_back(range.of(shard.gradients));
  sum_in_order(replicated, slices, ctx);
}

OwnedShard own_everything(const Parameters& params) {
  OwnedShard shard;
  shard.slice = params.slice();
  shard.pieces = unsharded_plan(params);
  shard.size = params.size();
  shard.values = {.flat = params.values, .exact = params.exact_values, .exact_begin = params.encoded_begin()};
  shard.weights = {params.weights, true};
  shard.gradients = {params.gradients, true};
  return shard;
}

}  // namespace ring
