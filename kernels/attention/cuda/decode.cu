// Attention of one new query per sequence over its KV cache. One thread block per query head: groups of lanes take
// turns at the keys, each with its own online softmax, and their results are merged in a fixed order at the end. The
// cache has the type of the query, or e4m3 codes with a scale for each row of a head.

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/attention/cuda/tile_schedule.cuh"
#include "kernels/attention/pools/gated_decode.h"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/fp8.cuh"

namespace ring::cuda {
namespace {

constexpr int kEach = 8;  // elements per lane: head dims are multiples of 8
constexpr int kMaxDim = kWarp * kEach;
constexpr int kAhead = 4;  // keys that a group loads at once

using Code = std::uint8_t;  // e4m3

template <class C>
constexpr bool is_code = std::is_same_v<C, Code>;

// The rows of one sequence and KV head, starting at a lane's first column.
template <class C>
struct CachedRows {
  const C* data;
  std::int64_t row;
  const std::uint8_t* scales;  // null unless the cache has e4m3 codes
  std::int64_t scale_row;

  __device__ float scale(std::int64_t at) const { return row_scale(scales[at * scale_row]); }
};

template <class C>
struct Cache4 {  // [B,capacity,Hk,D]; scales [B,capacity,Hk]
  const C* data;
  std::int64_t sequence, row, head;
  const std::uint8_t* scales;
  std::int64_t scale_sequence, scale_row;

  __device__ CachedRows<C> rows(int s, int h, int first) const {
    return {data + s * sequence + h * head + first, row, is_code<C> ? scales + s * scale_sequence + h : nullptr,
            scale_row};
  }
};

// T: type of queries and outputs. C: type of the cache, T or Code.
template <class T, class C>
struct DecodeParams {
  HeadsOf<const T> q;
  Cache4<C> k, v;
  HeadsOf<T> out;
  const std::int32_t* starts;
  const CacheRows* rows;
  int heads, group, dim, lanes;  // lanes: lanes per group, a power of two
  float factor, cap;             // attention scale and soft cap, times log2(e)
  bool aligned;
  const T* gates;  // [B,heads], added to the scores of rows from `gated` on; null if there are none
  std::int32_t gated;
  const T* sinks;  // [heads], learned sinks (sink.h); null if there are none
};

template <class T>
__device__ Floats<kEach> load8(const T* p, bool aligned, bool inside) {
  Floats<kEach> f{};
  if (!inside) return f;
  if constexpr (is_code<T>) {
    if (aligned) return load_e4m3<kEach>(p);
#pragma unroll
    for (int i = 0; i < kEach; ++i) f.v[i] = load_e4m3<1>(p + i).v[0];
  } else {
    if (aligned) return unpack(load_pack<T, kEach>(p));
#pragma unroll
    for (int i = 0; i < kEach; ++i) f.v[i] = to_float(p[i]);
  }
  return f;
}

struct Running {
  float largest = -INFINITY, total = 0;
  Floats<kEach> sum{};
};

// Returns exp2(score - largest), or 0 for -inf. A NaN score gives NaN, even if all scores are NaN: fmaxf() ignores NaN.
__device__ inline float weight(float score, float largest) {
  return score == -INFINITY ? 0.0f : exp2f(score - largest);
}

// Processes kAhead keys of a range: key, key + groups, ... Keys beyond the end of the range are masked. With e4m3
// codes, the scale of a key multiplies its score, and the scale of a value its probability.
template <class T, class C>
__device__ void take_keys(Running& r, const DecodeParams<T, C>& p, const Floats<kEach>& q, const CachedRows<C>& k,
                          const CachedRows<C>& v, int key, int groups, const CacheRows& rows, float gate, bool inside) {
  Floats<kEach> values[kAhead];
  float scores[kAhead], best = r.largest;
  [[maybe_unused]] float key_scales[kAhead], value_scales[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int u = key + i * groups;
    const std::int64_t at = rows.first + std::int64_t{u} * rows.stride;
    const Floats<kEach> row = load8(k.data + at * k.row, p.aligned, inside && u < rows.count);
    values[i] = load8(v.data + at * v.row, p.aligned, inside && u < rows.count);
    if constexpr (is_code<C>) {
      key_scales[i] = u < rows.count ? k.scale(at) : 0;
      value_scales[i] = u < rows.count ? v.scale(at) : 0;
    }
    scores[i] = 0;
#pragma unroll
    for (int e = 0; e < kEach; ++e) scores[i] += q.v[e] * row.v[e];
  }
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    for (int distance = p.lanes / 2; distance > 0; distance /= 2)
      scores[i] += __shfl_xor_sync(0xffffffffu, scores[i], distance);
    if constexpr (is_code<C>) scores[i] *= key_scales[i];
    scores[i] *= p.factor;
    if (p.cap > 0) scores[i] = p.cap * tanhf(scores[i] / p.cap);
    scores[i] = key + i * groups < rows.count ? scores[i] + gate : -INFINITY;
    best = fmaxf(best, scores[i]);
  }
  const float rescale = weight(r.largest, best);
  r.largest = best;
  r.total *= rescale;
#pragma unroll
  for (int e = 0; e < kEach; ++e) r.sum.v[e] *= rescale;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    float w = weight(scores[i], best);
    r.total += w;
    if constexpr (is_code<C>) w *= value_scales[i];
#pragma unroll
    for (int e = 0; e < kEach; ++e) r.sum.v[e] += w * values[i].v[e];
  }
}

template <class T, class C>
__global__ __launch_bounds__(kBlock) void decode(DecodeParams<T, C> p) {
  __shared__ float sums[kBlock * kEach], largest[kBlock], totals[kBlock];  // per group: `dim` sums, one max, one total
  const int sequence = static_cast<int>(blockIdx.x) / p.heads, head = static_cast<int>(blockIdx.x) % p.heads;
  const int groups = kBlock / p.lanes, mine = static_cast<int>(threadIdx.x) / p.lanes;
  const int first = static_cast<int>(threadIdx.x) % p.lanes * kEach;  // first column of this lane
  const int kv_head = head / p.group, list = sequence * (p.heads / p.group) + kv_head;
  const bool inside = first < p.dim;
  const CachedRows<C> k = p.k.rows(sequence, kv_head, first), v = p.v.rows(sequence, kv_head, first);
  const Floats<kEach> q = load8(p.q.at(sequence, head) + first, p.aligned, inside);
  Running r;
  for (int i = p.starts[list]; i < p.starts[list + 1]; ++i) {
    const CacheRows rows = p.rows[i];
    const bool gated = p.gates && rows.first >= p.gated;
    const float gate = gated ? to_float(p.gates[blockIdx.x]) * kLog2E : 0.0f;
    for (int key = 0; key < rows.count; key += kAhead * groups)
      take_keys(r, p, q, k, v, key + mine, groups, rows, gate, inside);
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e) sums[mine * p.lanes * kEach + first + e] = r.sum.v[e];
  if (first == 0) largest[mine] = r.largest, totals[mine] = r.total;
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x);
  if (column >= p.dim) return;
  const float sink = p.sinks ? to_float(p.sinks[head]) * kLog2E : -INFINITY;
  float best = sink, sum = 0;
  for (int g = 0; g < groups; ++g) best = fmaxf(best, largest[g]);
  float total = weight(sink, best);
  for (int g = 0; g < groups; ++g) {
    const float w = weight(largest[g], best);
    total += w * totals[g];
    sum += w * sums[g * p.lanes * kEach + column];
  }
  p.out.at(sequence, head)[column] = from_float<T>(total == 0.0f ? 0.0f : sum / total);
}

// Returns true if a lane can load kEach elements at once.
template <class T>
bool aligned(const Tensor& t) {
  constexpr std::int64_t size = sizeof(T), bytes = std::min<std::int64_t>(kEach * size, 16);
  bool whole = is_aligned<bytes>(t.raw());
  for (int i = 0; i + 1 < t.shape().size(); ++i) whole &= t.stride(i) * size % bytes == 0;
  return whole;
}

template <class C>
Cache4<C> cache_of(const Tensor& t, const Tensor& scales) {
  Cache4<C> c{reinterpret_cast<const C*>(t.raw()), t.stride(0), t.stride(1), t.stride(2), nullptr, 0, 0};
  if constexpr (is_code<C>)
    c.scales = scales.data<std::uint8_t>(), c.scale_sequence = scales.stride(0), c.scale_row = scales.stride(1);
  return c;
}

// Uploads the starts, followed by the ranges, in one buffer.
Tensor upload_lists(const AttentionDecode& a, const ExecContext& ctx) {
  static_assert(sizeof(CacheRows) == 3 * sizeof(std::int32_t));
  std::vector<std::int32_t> lists = a.starts;
  for (const CacheRows& r : a.rows) lists.insert(lists.end(), {r.first, r.count, r.stride});
  const Tensor out = ctx.empty({static_cast<std::int64_t>(lists.size())}, DType::i32);
  ctx.stream.impl().upload(out.raw(), lists.data(), out.bytes());
  return out;
}

template <class T, class C>
void run(const AttentionDecode& a, const Tensor& gates, std::int32_t gated, const ExecContext& ctx) {
  const Tensor lists = upload_lists(a, ctx);
  const int heads = static_cast<int>(a.q.dim(1)), dim = static_cast<int>(a.q.dim(2));
  int lanes = 1;
  while (lanes * kEach < dim) lanes *= 2;
  const DecodeParams<T, C> p{heads_of<const T>(a.q),
                             cache_of<C>(a.k, a.k_scales),
                             cache_of<C>(a.v, a.v_scales),
                             heads_of<T>(a.out),
                             lists.data<std::int32_t>(),
                             reinterpret_cast<const CacheRows*>(lists.data<std::int32_t>() + a.starts.size()),
                             heads,
                             heads / static_cast<int>(a.k.dim(2)),
                             dim,
                             lanes,
                             a.scale * kLog2E,
                             a.soft_cap * kLog2E,
                             aligned<T>(a.q) && aligned<C>(a.k) && aligned<C>(a.v),
                             device_data<T>(gates),
                             gated,
                             device_data<T>(a.sinks)};
  launch(ctx, {grid_of(a.q.dim(0) * heads)}, decode<T, C>, p);
}

void run_decode(const AttentionDecode& a, const Tensor& gates, std::int32_t gated, const ExecContext& ctx) {
  constexpr const char* op = "attention_decode";
  RING_CHECK(a.q.dim(2) <= kMaxDim, op, ": head dim ", a.q.dim(2), ", expected ", kMaxDim, " at most");
  if (a.q.numel() == 0) return;
  visit_float(op, a.q.dtype(),
              [&]<class T>() { (a.k_scales.defined() ? run<T, Code> : run<T, T>)(a, gates, gated, ctx); });
}

void run_plain(const AttentionDecode& a, const ExecContext& ctx) {
  ring::check(a);
  run_decode(a, {}, 0, ctx);
}

void run_gated(const GatedDecode& a, const ExecContext& ctx) {
  ring::check(a);
  run_decode(a.decode, a.gates, a.first, ctx);
}

bool supports(const AttentionDecode& a, const ExecContext&) { return a.q.dim(2) <= kMaxDim; }
bool supports_gated(const GatedDecode& a, const ExecContext&) { return a.decode.q.dim(2) <= kMaxDim; }

const bool added_decode[] = {attention_decode_kernel.add(Backend::cuda, {"own_simt", run_plain, supports, 0}),
                             gated_decode_kernel.add(Backend::cuda, {"own_simt", run_gated, supports_gated, 0})};

}  // namespace
}  // namespace ring::cuda
