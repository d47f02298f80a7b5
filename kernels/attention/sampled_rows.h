#pragma once
#include <cmath>

#include "core/host_device.h"
#include "kernels/kernel.h"

namespace ring {

// Rows of a sequence that dilated attention samples (LongNet, Ding et al. 2023): sample i of KV head k is row
// (k + shift) mod rate + i * rate. Head h of a tensor [N,H,D] belongs to KV head h * kv_heads / H, where H is a
// multiple of kv_heads. Every sampled row must be below N.
//
// Tensors [N,H,D] and [count,H,D] may have any row and head strides, but the last dim must have stride 1, as in views
// into a matrix of queries, keys and values. Tensors [H,N] and [H,count] must be contiguous. The tensors of a call must
// not overlap. Rows that are not sampled are left unchanged.
struct SampledRows {
  std::int64_t count = 0, rate = 1, shift = 0, kv_heads = 1;

  // Returns the row of sample i of a KV head.
  std::int64_t row(std::int64_t kv_head, std::int64_t i) const { return (kv_head + shift) % rate + i * rate; }
  // Returns the row of sample i of one of the `heads` heads of a tensor.
  std::int64_t row_of_head(std::int64_t head, std::int64_t heads, std::int64_t i) const {
    return row(head / (heads / kv_heads), i);
  }
};

// dst[i, h, :] = src[row, h, :] for the row of each sample i. src [N,H,D], dst [count,H,D], both f32 or both bf16.
struct GatherSamples {
  Tensor src, dst;
  SampledRows rows;
};
inline Cost cost(const GatherSamples& a) { return cost_of(a.dst, {a.dst, a.dst}); }
inline constinit Kernel<GatherSamples> gather_samples_kernel{"gather_samples"};

// dst[row, h, :] += src[i, h, :] for the row of each sample i. src [count,H,D], dst [N,H,D], both f32.
struct AddSamples {
  Tensor src, dst;
  SampledRows rows;
};
inline Cost cost(const AddSamples& a) { return cost_of(a.src, {a.src, a.src, a.src}); }
inline constinit Kernel<AddSamples> add_samples_kernel{"add_samples"};

// dst[h, i] = src[h, row] for the row of each sample i. src [H,N], dst [H,count], both f32.
struct GatherSampleLse {
  Tensor src, dst;
  SampledRows rows;
};
inline Cost cost(const GatherSampleLse& a) { return cost_of(a.dst, {a.dst, a.dst}); }
inline constinit Kernel<GatherSampleLse> gather_sample_lse_kernel{"gather_sample_lse"};

// Merges the result of attention over other keys into the sampled rows of a result, all in f32:
//   lse = log(exp(lse) + exp(part_lse)), and out is the mean of both outputs with weights exp(lse) and exp(part_lse).
// If one log-sum-exp is -inf (a query without keys), its output is not read and the other result is taken unchanged. If
// both are -inf, out becomes 0. If one is NaN and the other is not -inf, lse and out become NaN.
//   out       [N,H,D], lse [H,N]: the result, overwritten.
//   part      [count,H,D], part_lse [H,count]: the result over other keys, for the samples alone.
struct MergeSamples {
  Tensor out, lse, part, part_lse;
  SampledRows rows;
};
inline Cost cost(const MergeSamples& a) {
  return cost_of(a.part, {a.part, a.part, a.part, a.part_lse, a.part_lse, a.part_lse});
}
inline constinit Kernel<MergeSamples> merge_samples_kernel{"merge_samples"};

// These functions throw Error, naming the tensor, if shapes, types or rows do not fit.
void check(const GatherSamples&);
void check(const AddSamples&);
void check(const GatherSampleLse&);
void check(const MergeSamples&);

// The log-sum-exp of two merged results, and the weights of their outputs.
struct MergedLse {
  float lse, first_weight, second_weight;
};
// Requires that neither log-sum-exp is -inf. The sum is at most 2, so that nothing overflows.
RING_HOST_DEVICE inline MergedLse merged_lse(float first, float second) {
  const float smaller = std::exp(-std::abs(first - second)), sum = 1 + smaller;  // relative to the larger one
  const bool in_order = first >= second;
  return {(in_order ? first : second) + std::log1p(smaller), (in_order ? 1 : smaller) / sum,
          (in_order ? smaller : 1) / sum};
}

}  // namespace ring
