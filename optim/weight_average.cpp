#include "optim/weight_average.h"

#include <algorithm>

#include "kernels/moving_average.h"

namespace ring {
namespace {

constexpr std::int64_t kMaxAtOnce = std::int64_t{1} << 22;  // maximum elements swapped at a time

std::int64_t at_once(std::int64_t elements) { return std::min(elements, kMaxAtOnce); }

}  // namespace

WeightAverage::WeightAverage(double decay, const OwnedShard& shard, const ExecContext& ctx)
    : decay_(decay),
      shard_(shard),
      ranges_(shard.ranges()),
      average_(shard.as_shard(ctx.zeros({shard.size}, DType::f32, Lifetime::run))),
      room_(ctx.empty({at_once(shard.size)}, DType::f32, Lifetime::run)) {
  RING_CHECK(shard.values.flat.dtype() == DType::f32 && shard.values.flat.device() == ctx.stream.device(),
             "weight average: values are ", describe(shard.values.flat), ", expected f32 on the device");
  start(ctx);
}

void WeightAverage::start(const ExecContext& ctx) {
  for (const UpdateRange& range : ranges_) copy(range.of(average_), range.of(shard_.values), ctx.stream);
}

void WeightAverage::update(const Tensor& step, const ExecContext& ctx) const {
  for (const UpdateRange& range : ranges_)
    moving_average_kernel({range.of(shard_.values), range.of(average_), step, decay_}, ctx);
}

void WeightAverage::swap_values(const ExecContext& ctx) const {
  for (const UpdateRange& range : ranges_) {
    const Tensor values = range.of(shard_.values), average = range.of(average_);
    for (std::int64_t at = 0; at < range.numel; at += room_.numel()) {
      const std::int64_t n = std::min(room_.numel(), range.numel - at);
      const Tensor room = room_.narrow(0, 0, n), one = values.narrow(0, at, n), other = average.narrow(0, at, n);
      copy(room, one, ctx.stream);
      copy(one, other, ctx.stream);
      copy(other, room, ctx.stream);
    }
  }
}

std::uint64_t average_bytes(std::int64_t elements) {
  return static_cast<std::uint64_t>(elements + at_once(elements)) * size_of(DType::f32);
}

}  // namespace ring
