#include "optim/update_ratio.h"

#include <algorithm>

#include "core/host_tensor.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"

namespace ring {
namespace {

constexpr std::int64_t kMaxAtOnce = std::int64_t{1} << 22;  // maximum elements of a chunk

std::int64_t at_once(std::int64_t elements) { return std::min(elements, kMaxAtOnce); }

}  // namespace

std::size_t UpdateRatios::device_bytes(std::int64_t elements, DType values) {
  const std::size_t each = values == DType::f32 ? size_of(values) : size_of(values) + 2 * size_of(DType::f32);
  return static_cast<std::size_t>(at_once(elements)) * each;
}

UpdateRatios::UpdateRatios(const OwnedShard& shard, const Model& model, bool counts, const ExecContext& ctx)
    : shard_(shard) {
  std::vector<ScopeId> parts;
  ranges_ = counted_ranges(shard, model, counts, parts);
  const DType type = shard.values.flat.dtype();
  const Shape chunk{at_once(shard.size)};
  old_ = shard.shard(host_tensor({shard.size}, type, ctx.stream));
  raw_ = ctx.empty(chunk, type, Lifetime::run);
  room_ = type == DType::f32 ? raw_ : ctx.empty(chunk, DType::f32, Lifetime::run);
  if (type != DType::f32) other_room_ = ctx.empty(chunk, DType::f32, Lifetime::run);
  squares_ = ctx.zeros({2, static_cast<std::int64_t>(parts.size())}, DType::f32, Lifetime::run);
}

void UpdateRatios::before_update(const ExecContext& ctx) const {
  for (const CountedRange& r : ranges_) copy(r.range.of(old_), r.range.of(shard_.values), ctx.stream);
}

Tensor UpdateRatios::in_f32(const Tensor& values, const Tensor& room, const ExecContext& ctx) const {
  if (values.dtype() == DType::f32) return values;
  const Tensor out = room.narrow(0, 0, values.numel());
  cast_kernel({values, out}, ctx);
  return out;
}

void UpdateRatios::compare(const CountedRange& r, const ExecContext& ctx) const {
  const auto part = static_cast<std::int64_t>(r.part);
  const Tensor changed = squares_.narrow(0, 0, 1).narrow(1, part, 1),
               size = squares_.narrow(0, 1, 1).narrow(1, part, 1);
  for (std::int64_t at = 0; at < r.range.numel; at += raw_.numel()) {
    const std::int64_t n = std::min(raw_.numel(), r.range.numel - at);
    const Tensor raw = raw_.narrow(0, 0, n);
    copy(raw, r.range.of(old_).narrow(0, at, n), ctx.stream);
    const Tensor old = in_f32(raw, room_, ctx),
                 now = in_f32(r.range.of(shard_.values).narrow(0, at, n), other_room_, ctx);
    squared_norm_kernel({old, size}, ctx);
    axpby_kernel({now, old, old, 1, -1}, ctx);
    squared_norm_kernel({old, changed}, ctx);
  }
}

const Tensor& UpdateRatios::after_update(const ExecContext& ctx) const {
  fill_zero(squares_, ctx.stream);
  for (const CountedRange& r : ranges_) compare(r, ctx);
  return squares_;
}

}  // namespace ring
