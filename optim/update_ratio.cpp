#include "optim/update_ratio.h"

#include <algorithm>

#include "core/host_tensor.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"

namespace ring {
namespace {

constexpr std::int64_t kMaxChunk = std::int64_t{1} << 22;  // maximum elements of a chunk

std::int64_t chunk_size(std::int64_t elements) { return std::min(elements, kMaxChunk); }

}  // namespace

std::size_t UpdateRatios::device_bytes(std::int64_t elements, DType values) {
  const std::size_t each = values == DType::f32 ? size_of(values) : size_of(values) + 2 * size_of(DType::f32);
  return static_cast<std::size_t>(chunk_size(elements)) * each;
}

UpdateRatios::UpdateRatios(const OwnedShard& shard, const Model& model, bool counted_here, const ExecContext& ctx)
    : shard_(shard) {
  CountedRanges counted = counted_ranges(shard, model, counted_here);
  ranges_ = std::move(counted.ranges);
  const DType type = shard.values.flat.dtype();
  const Shape chunk{chunk_size(shard.size)};
  old_ = shard.as_shard(host_tensor({shard.size}, type, ctx.stream));
  old_chunk_ = ctx.empty(chunk, type, Lifetime::run);
  if (type != DType::f32) {
    old_f32_ = ctx.empty(chunk, DType::f32, Lifetime::run);
    new_f32_ = ctx.empty(chunk, DType::f32, Lifetime::run);
  }
  squares_ = ctx.zeros({2, static_cast<std::int64_t>(counted.parts.size())}, DType::f32, Lifetime::run);
}

void UpdateRatios::before_update(const ExecContext& ctx) const {
  for (const CountedRange& r : ranges_) copy(r.range.of(old_), r.range.of(shard_.values), ctx.stream);
}

Tensor UpdateRatios::to_f32(const Tensor& values, const Tensor& room, const ExecContext& ctx) const {
  if (values.dtype() == DType::f32) return values;
  const Tensor out = room.narrow(0, 0, values.numel());
  cast_kernel({values, out}, ctx);
  return out;
}

// Adds the sums of squares of a range's changes and of its old values.
void UpdateRatios::measure_range(const CountedRange& r, const ExecContext& ctx) const {
  const auto part = static_cast<std::int64_t>(r.part);
  const Tensor change_squares = squares_.narrow(0, 0, 1).narrow(1, part, 1),
               old_squares = squares_.narrow(0, 1, 1).narrow(1, part, 1);
  for (std::int64_t at = 0; at < r.range.numel; at += old_chunk_.numel()) {
    const std::int64_t n = std::min(old_chunk_.numel(), r.range.numel - at);
    const Tensor chunk = old_chunk_.narrow(0, 0, n);
    copy(chunk, r.range.of(old_).narrow(0, at, n), ctx.stream);
    const Tensor old = to_f32(chunk, old_f32_, ctx),
                 now = to_f32(r.range.of(shard_.values).narrow(0, at, n), new_f32_, ctx);
    squared_norm_kernel({old, old_squares}, ctx);
    axpby_kernel({.x = now, .y = old, .out = old, .alpha = 1, .beta = -1}, ctx);  // old = now - old
    squared_norm_kernel({old, change_squares}, ctx);
  }
}

const Tensor& UpdateRatios::after_update(const ExecContext& ctx) const {
  fill_zero(squares_, ctx.stream);
  for (const CountedRange& r : ranges_) measure_range(r, ctx);
  return squares_;
}

}  // namespace ring
