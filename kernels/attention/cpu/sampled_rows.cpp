#include "kernels/attention/sampled_rows.h"

#include <cstring>
#include <limits>

#include "kernels/attention/cpu/common.h"
#include "kernels/cpu/rows.h"

namespace ring::cpu {
namespace {

constexpr float kNoKeys = -std::numeric_limits<float>::infinity();

// Calls fn(sample, head, row) for every sample of every head. `work`: cost of a call, as for row_grain().
template <class Fn>
void for_samples(const SampledRows& rows, std::int64_t heads, std::int64_t work, const ExecContext& ctx, const Fn& fn) {
  ctx.stream.pool().parallel_for(rows.count * heads, row_grain(work), [&](auto begin, auto end, int) {
    for (std::int64_t n = begin; n < end; ++n) fn(n / heads, n % heads, rows.row_of_head(n % heads, heads, n / heads));
  });
}

void run_gather(const GatherSamples& a, const ExecContext& ctx) {
  check(a);
  const auto unit = static_cast<std::int64_t>(size_of(a.src.dtype()));
  const auto at = [unit](const Tensor& t, std::int64_t row, std::int64_t head) {
    return t.raw() + (row * t.stride(0) + head * t.stride(1)) * unit;
  };
  const auto bytes = static_cast<std::size_t>(a.src.dim(2) * unit);
  for_samples(a.rows, a.src.dim(1), a.src.dim(2), ctx, [&](std::int64_t i, std::int64_t head, std::int64_t row) {
    std::memcpy(at(a.dst, i, head), at(a.src, row, head), bytes);
  });
}

void run_add(const AddSamples& a, const ExecContext& ctx) {
  check(a);
  const Heads src = heads_of(a.src), dst = heads_of(a.dst);
  for_samples(a.rows, dst.heads, dst.dim, ctx, [&](std::int64_t i, std::int64_t head, std::int64_t row) {
    const float* const from = src.at(i, head);
    float* const to = dst.at(row, head);
    for (std::int64_t d = 0; d < dst.dim; ++d) to[d] += from[d];
  });
}

void run_gather_lse(const GatherSampleLse& a, const ExecContext& ctx) {
  check(a);
  const float* const src = a.src.data<float>();
  float* const dst = a.dst.data<float>();
  for_samples(a.rows, a.src.dim(0), 1, ctx, [&](std::int64_t i, std::int64_t head, std::int64_t row) {
    dst[head * a.rows.count + i] = src[head * a.src.dim(1) + row];
  });
}

void merge(float* out, float& lse, const float* part, float part_lse, std::int64_t dim) {
  if (part_lse == kNoKeys) {
    if (lse == kNoKeys) std::fill_n(out, dim, 0.0f);
    return;
  }
  if (lse == kNoKeys) {
    std::copy_n(part, dim, out);
    lse = part_lse;
    return;
  }
  const MergedLse merged = merged_lse(lse, part_lse);
  for (std::int64_t d = 0; d < dim; ++d) out[d] = merged.first_weight * out[d] + merged.second_weight * part[d];
  lse = merged.lse;
}

void run_merge(const MergeSamples& a, const ExecContext& ctx) {
  check(a);
  const Heads out = heads_of(a.out), part = heads_of(a.part);
  float* const lse = a.lse.data<float>();
  const float* const part_lse = a.part_lse.data<float>();
  for_samples(a.rows, out.heads, 2 * out.dim + 64, ctx, [&](std::int64_t i, std::int64_t head, std::int64_t row) {
    merge(out.at(row, head), lse[head * out.tokens + row], part.at(i, head), part_lse[head * part.tokens + i], out.dim);
  });
}

const bool added_sampled_rows[] = {gather_samples_kernel.add(Backend::cpu, {"loops", run_gather}),
                                   add_samples_kernel.add(Backend::cpu, {"loops", run_add}),
                                   gather_sample_lse_kernel.add(Backend::cpu, {"loops", run_gather_lse}),
                                   merge_samples_kernel.add(Backend::cpu, {"loops", run_merge})};

}  // namespace
}  // namespace ring::cpu
