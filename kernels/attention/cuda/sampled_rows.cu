#include "kernels/attention/sampled_rows.h"

#include <bit>

#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

// Maps samples to rows. Samples are numbered consecutively across all heads, with numbers below 2^31.
struct SampleIndex {
  Divider group, rate;  // group: heads per KV head
  std::uint32_t shift;  // below the rate
  // Returns the first sampled row of a head.
  __device__ std::uint32_t first_row(std::uint32_t head) const {
    const std::uint32_t n = group.quotient(head) + shift;
    return n - rate.quotient(n) * rate.divisor;
  }
};

// Each group of `lanes` neighbouring threads, a power of two within a warp, handles one sample of one head.
template <class T>
struct SampleParams {
  StridedRows<T> rows, samples;  // rows.at(i, head): sample i of a head whose first sampled row is 0
  std::int64_t row_stride;
  SampleIndex index;
  Divider heads;
  std::uint32_t count;  // samples of all heads
  int dim, lanes;
};

// The sample assigned to a thread's group. `inside` is false for threads past the last sample.
template <class T>
struct Sample {
  std::uint32_t number, head, first_row;
  bool inside;
  int column;  // first column of the thread
  T *in_rows, *in_samples;

  __device__ Sample(const SampleParams<T>& p, int each) {
    const std::int64_t i = thread_x() / p.lanes;
    inside = i < p.count;
    const std::uint32_t index = inside ? static_cast<std::uint32_t>(i) : 0;
    number = p.heads.quotient(index);
    head = index - number * p.heads.divisor;
    first_row = p.index.first_row(head);
    column = static_cast<int>(threadIdx.x) % p.lanes * each;
    in_rows = p.rows.at(number, head) + first_row * p.row_stride;
    in_samples = p.samples.at(number, head);
  }
};

template <class T, int n>
__global__ void __launch_bounds__(kBlock) gather_samples(const SampleParams<T> p) {
  const Sample<T> s(p, n);
  for (int c = s.column; s.inside && c < p.dim; c += p.lanes * n)
    store_pack(s.in_samples + c, load_pack<T, n>(s.in_rows + c));
}

// Stores first_weight * (element of the row) + second_weight * (element of the sample) to the row.
template <int n>
__device__ void store_mean(const Sample<float>& s, int c, float first_weight, float second_weight) {
  const Floats<n> row = unpack(load_pack<float, n>(s.in_rows + c)),
                  sample = unpack(load_pack<float, n>(s.in_samples + c));
  Floats<n> mean;
#pragma unroll
  for (int j = 0; j < n; ++j) mean.v[j] = first_weight * row.v[j] + second_weight * sample.v[j];
  store_pack(s.in_rows + c, pack<float>(mean));
}

template <int n>
__global__ void __launch_bounds__(kBlock) add_samples(const SampleParams<float> p) {
  const Sample<float> s(p, n);
  for (int c = s.column; s.inside && c < p.dim; c += p.lanes * n) store_mean<n>(s, c, 1, 1);
}

__global__ void __launch_bounds__(kBlock) gather_sample_lse(const float* src, float* dst, SampleIndex index,
                                                            Divider samples, std::uint32_t count, std::int64_t rows) {
  const std::int64_t i = thread_x();
  if (i >= count) return;
  const std::uint32_t head = samples.quotient(static_cast<std::uint32_t>(i));
  const std::int64_t sample = i - std::int64_t{head} * samples.divisor;
  dst[i] = src[head * rows + index.first_row(head) + sample * index.rate.divisor];
}

struct MergeLse {
  float* lse;
  const float* part_lse;
  std::int64_t rows, samples;  // elements per head
};

template <int n>
__global__ void __launch_bounds__(kBlock) merge_samples(const SampleParams<float> p, const MergeLse m) {
  constexpr float kNoKeys = -INFINITY;
  const Sample<float> s(p, n);
  float* const lse = m.lse + s.head * m.rows + s.first_row + std::int64_t{s.number} * p.index.rate.divisor;
  const float before = s.inside ? *lse : kNoKeys,
              added = s.inside ? m.part_lse[s.head * m.samples + s.number] : kNoKeys;
  __syncwarp();  // all lanes have read the log-sum-exp before one of them overwrites it
  if (!s.inside || (added == kNoKeys && before != kNoKeys)) return;
  if (before == kNoKeys) {
    for (int c = s.column; c < p.dim; c += p.lanes * n)
      store_pack(s.in_rows + c, added == kNoKeys ? Pack<float, n>{} : load_pack<float, n>(s.in_samples + c));
    if (s.column == 0) *lse = added;
    return;
  }
  const MergedLse merged = merged_lse(before, added);
  for (int c = s.column; c < p.dim; c += p.lanes * n) store_mean<n>(s, c, merged.first_weight, merged.second_weight);
  if (s.column == 0) *lse = merged.lse;
}

SampleIndex sample_index(std::string_view op, const SampledRows& r, std::int64_t heads) {
  RING_CHECK(r.rate < std::int64_t{1} << 30 && r.kv_heads < std::int64_t{1} << 30, op, ": rate ", r.rate, " and ",
             r.kv_heads, " KV heads, but each must be below 2^30");
  return {Divider(static_cast<std::uint32_t>(heads / r.kv_heads)), Divider(static_cast<std::uint32_t>(r.rate)),
          static_cast<std::uint32_t>(r.shift % r.rate)};
}

template <class T>
SampleParams<T> sample_params(std::string_view op, const Tensor& rows, const Tensor& samples, const SampledRows& r,
                              int each) {
  const std::int64_t heads = rows.dim(1), dim = rows.dim(2), count = r.count * heads;
  return {{device_data<T>(rows), r.rate * rows.stride(0), rows.stride(1)},
          {device_data<T>(samples), samples.stride(0), samples.stride(1)},
          rows.stride(0),
          sample_index(op, r, heads),
          divider_of(op, count, heads),
          static_cast<std::uint32_t>(count),
          static_cast<int>(dim),
          static_cast<int>(std::bit_ceil(std::min<std::uint64_t>(
              static_cast<std::uint64_t>(divide_up(dim, std::int64_t{each})), std::uint64_t{kWarp})))};
}

// Returns true if every row of a head consists of whole, aligned 16-byte packs.
bool rows_have_packs(const Tensor& t) {
  const auto size = static_cast<std::int64_t>(size_of(t.dtype()));
  return is_aligned(t.raw()) && t.dim(2) * size % 16 == 0 && t.stride(0) * size % 16 == 0 &&
         t.stride(1) * size % 16 == 0;
}

// Launches `packed`, whose threads process 16 bytes at a time, or `single`, whose threads process one element.
template <class T, class... Params, class... Args>
void launch_on_samples(std::string_view op, const ExecContext& ctx, const Tensor& rows, const Tensor& samples,
                       const SampledRows& r, void (*packed)(const SampleParams<T>, Params...),
                       void (*single)(const SampleParams<T>, Params...), const Args&... args) {
  if (r.count == 0) return;
  const bool packs = rows_have_packs(rows) && rows_have_packs(samples);
  const SampleParams<T> p = sample_params<T>(op, rows, samples, r, packs ? kPack<T> : 1);
  launch(ctx, {grid_of(divide_up(std::int64_t{p.count} * p.lanes, std::int64_t{kBlock}))}, packs ? packed : single, p,
         args...);
}

void run(const GatherSamples& a, const ExecContext& ctx) {
  check(a);
  visit_float("gather_samples", a.src.dtype(), [&]<class T>() {
    launch_on_samples<T>("gather_samples", ctx, a.src, a.dst, a.rows, gather_samples<T, kPack<T>>,
                         gather_samples<T, 1>);
  });
}

void run(const AddSamples& a, const ExecContext& ctx) {
  check(a);
  launch_on_samples<float>("add_samples", ctx, a.dst, a.src, a.rows, add_samples<kPack<float>>, add_samples<1>);
}

void run(const GatherSampleLse& a, const ExecContext& ctx) {
  constexpr std::string_view op = "gather_sample_lse";
  check(a);
  const std::int64_t heads = a.src.dim(0), count = heads * a.rows.count;
  if (count == 0) return;
  launch(ctx, {grid_of(divide_up(count, kBlock))}, gather_sample_lse, device_data<float>(a.src),
         device_data<float>(a.dst), sample_index(op, a.rows, heads), divider_of(op, count, a.rows.count),
         static_cast<std::uint32_t>(count), a.src.dim(1));
}

void run(const MergeSamples& a, const ExecContext& ctx) {
  check(a);
  launch_on_samples<float>(
      "merge_samples", ctx, a.out, a.part, a.rows, merge_samples<kPack<float>>, merge_samples<1>,
      MergeLse{device_data<float>(a.lse), device_data<float>(a.part_lse), a.out.dim(0), a.rows.count});
}

const bool added_sampled_rows[] = {gather_samples_kernel.add(Backend::cuda, {"packs", run}),
                                   add_samples_kernel.add(Backend::cuda, {"packs", run}),
                                   gather_sample_lse_kernel.add(Backend::cuda, {"elements", run}),
                                   merge_samples_kernel.add(Backend::cuda, {"packs", run})};

}  // namespace
}  // namespace ring::cuda
