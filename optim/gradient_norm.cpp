#include "optim/gradient_norm.h"

#include <algorithm>
#include <map>

#include "kernels/optimizer.h"
#include "parallel/ordered_sum.h"

namespace ring {
namespace {

// Returns true if this rank adds the range to the gradient norm: replicated parameters are added only on slice 0.
bool counts_on(const OwnedShard& shard, const UpdateRange& range) {
  return !range.frozen && (range.cut || shard.slice.rank == 0);
}

// Returns true if this rank adds its whole gradient buffer to the norm, so that one pass over the buffer suffices.
bool counts_all(const OwnedShard& shard, const std::vector<UpdateRange>& ranges) {
  return shard.gradients.flat.numel() == shard.size &&
         std::ranges::all_of(ranges, [&](const UpdateRange& r) { return counts_on(shard, r); });
}

std::vector<Tensor> counted_gradients(const OwnedShard& shard) {
  const std::vector<UpdateRange> ranges = shard.ranges();
  if (counts_all(shard, ranges)) return {shard.gradients.flat};
  std::vector<Tensor> out;
  for (const UpdateRange& range : ranges)
    if (counts_on(shard, range)) out.push_back(range.of(shard.gradients));
  return out;
}

}  // namespace

GradientNorm::GradientNorm(const OwnedShard& shard, std::vector<Communicator*> over)
    : counted_(counted_gradients(shard)), over_(std::move(over)) {}

void GradientNorm::decide_acceptance(const Tensor& step, double clip, const Tensor& loss,
                                     const std::uint32_t* peer_lost, const ExecContext& ctx) const {
  const Tensor sum = squared_norm_of(step);
  for (const Tensor& gradients : counted_) squared_norm_kernel({gradients, sum}, ctx);
  for (Communicator* group : over_)
    if (group->size() > 1) sum_in_order({sum}, *group, ctx);
  check_and_clip_kernel({step, static_cast<float>(clip), loss, peer_lost}, ctx);
}

CountedRanges counted_ranges(const OwnedShard& shard, const Model& model, bool counted_here) {
  CountedRanges out;
  std::map<const Param*, std::size_t> part_of;
  for (const ModelPart& part : model.parts()) {
    const std::size_t before = part_of.size();
    for (const Param* p : part.params) part_of.emplace(p, out.parts.size());
    if (part_of.size() > before) out.parts.push_back(part.scope);
  }
  if (!counted_here) return out;
  for (const UpdateRange& range : shard.ranges([&](const Param&p, const LogicalParam&) { return part_of.at(&p); }))
    if (counts_on(shard, range)) out.ranges.push_back({range.key, range});
  return out;
}

PartNorms::PartNorms(const OwnedShard& shard, const Model& model, bool counted_here, const ExecContext& ctx) {
  CountedRanges counted = counted_ranges(shard, model, counted_here);
  for (const CountedRange& r : counted.ranges) counted_.push_back({r.part, r.range.of(shard.gradients)});
  parts_ = std::move(counted.parts);
  squares_ = ctx.zeros({static_cast<std::int64_t>(parts_.size())}, DType::f32, Lifetime::run);
}

const Tensor& PartNorms::measure(const ExecContext& ctx) const {
  fill_zero(squares_, ctx.stream);
  for (const auto& [part, gradients] : counted_)
    squared_norm_kernel({gradients, squares_.narrow(0, static_cast<std::int64_t>(part), 1)}, ctx);
  return squares_;
}

}  // namespace ring
