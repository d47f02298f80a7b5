// Attention of one new query per sequence over its KV cache. The query heads of a KV head share their keys, so their
// scores for a range of keys are one small GEMM. Each task computes one sequence and KV head. If the cache is in e4m3,
// a range is decoded to fp32 a few rows at a time, and each such chunk is one GEMM.

#include <bit>
#include <cmath>
#include <span>

#include "kernels/attention/cpu/common.h"
#include "kernels/attention/cpu/softmax.h"
#include "kernels/attention/pools/gated_decode.h"
#include "kernels/cpu/gemm.h"
#include "kernels/fp8.h"

namespace ring::cpu {
namespace {

constexpr std::int64_t kChunk = 64;  // rows decoded at a time

struct Task {
  std::int64_t sequence, kv_head, cost;  // cost: number of keys
  std::span<const CacheRows> rows;
};

struct Problem {
  Heads q, out;
  const Tensor &k, &v, &k_scales, &v_scales;
  float scale, soft_cap;
  std::int64_t group, padded;  // group: query heads per KV head; padded: floats per row of scores
  const float* gates;          // [B,Hq], added to the scores of cache rows from `gated` on; null if there are none
  std::int32_t gated;
  const float* sinks;  // [Hq], learned sinks (sink.h); null if there are none
};

// Calls fn(rows, stride in floats, count) for all rows of a range, in order. If `scales` is undefined, the tensor must
// be fp32. Otherwise the rows are first decoded into `decoded`.
template <class Fn>
void for_cached(const Tensor& t, const Tensor& scales, const Task& task, const CacheRows& r, float* decoded,
                const Fn& fn) {
  const std::int64_t first = task.sequence * t.stride(0) + task.kv_head * t.stride(2), dim = t.dim(3);
  if (!scales.defined()) return fn(t.data<float>() + first + r.first * t.stride(1), t.stride(1) * r.stride, r.count);
  const std::uint8_t* const codes = t.data<std::uint8_t>() + first;
  const std::uint8_t* const exponents = scales.data<std::uint8_t>() + task.sequence * scales.stride(0) + task.kv_head;
  for (std::int64_t from = 0; from < r.count; from += kChunk) {
    const std::int64_t count = std::min(kChunk, r.count - from);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = r.first + (from + i) * r.stride;
      const float scale = std::bit_cast<float>(std::uint32_t{exponents[row * scales.stride(1)]} << 23);
      for (std::int64_t c = 0; c < dim; ++c) decoded[i * dim + c] = from_e4m3(codes[row * t.stride(1) + c]) * scale;
    }
    fn(decoded, dim, count);
  }
}

void add_gates(const Problem& p, const Task& t, std::int64_t count, float* scores) {
  const float* gates = p.gates + t.sequence * p.q.heads + t.kv_head * p.group;
  for (std::int64_t g = 0; g < p.group; ++g)
    for (std::int64_t j = 0; j < count; ++j) scores[g * p.padded + j] += gates[g];
}

// Computes the scores of all ranges of keys, concatenated.
void score(const Problem& p, const Task& t, float* scores, float* decoded) {
  for (const CacheRows& r : t.rows)
    for_cached(p.k, p.k_scales, t, r, decoded, [&](const float* keys, std::int64_t stride, std::int64_t count) {
      gemm({.transpose_b = true,
            .m = p.group,
            .n = count,
            .k = p.q.dim,
            .a = p.q.at(t.sequence, t.kv_head * p.group),
            .lda = p.q.head,
            .b = keys,
            .ldb = stride,
            .c = scores,
            .ldc = p.padded,
            .alpha = p.scale});
      for (std::int64_t g = 0; g < p.group; ++g) cap_scores(scores + g * p.padded, count, p.soft_cap);
      if (p.gates && r.first >= p.gated) add_gates(p, t, count, scores);
      scores += count;
    });
}

// Computes the output of one task. scores, decoded: scratch memory of the thread.
void run_task(const Problem& p, const Task& t, float* scores, float* decoded) {
  const std::int64_t head = t.kv_head * p.group, padded = whole_vectors(t.cost);
  score(p, t, scores, decoded);
  for (std::int64_t g = 0; g < p.group; ++g) {
    float* row = scores + g * p.padded;
    std::fill(row + t.cost, row + padded, kMinusInf);
    const float sink = p.sinks ? p.sinks[head + g] : kMinusInf, max = std::max(row_max(row, padded), sink);
    const float shift = max == kMinusInf ? 0 : max, total = row_exp(row, padded, shift) + std::exp(sink - shift);
    const float factor = total == 0 ? 0 : 1 / total;
    for (std::int64_t j = 0; j < t.cost; ++j) row[j] *= factor;
    std::fill_n(p.out.at(t.sequence, head + g), p.out.dim, 0.0f);
  }
  for (const CacheRows& r : t.rows)
    for_cached(p.v, p.v_scales, t, r, decoded, [&](const float* values, std::int64_t stride, std::int64_t count) {
      gemm({.m = p.group,
            .n = p.q.dim,
            .k = count,
            .a = scores,
            .lda = p.padded,
            .b = values,
            .ldb = stride,
            .c = p.out.at(t.sequence, head),
            .ldc = p.out.head,
            .beta = 1});
      scores += count;
    });
}

void decode(const AttentionDecode& args, const float* gates, std::int32_t gated, const ExecContext& ctx) {
  const std::int64_t kv_heads = args.k.dim(2);
  const float* const sinks = args.sinks.defined() ? args.sinks.data<float>() : nullptr;
  Problem p{heads_of(args.q),
            heads_of(args.out),
            args.k,
            args.v,
            args.k_scales,
            args.v_scales,
            args.scale,
            args.soft_cap,
            0,
            0,
            gates,
            gated,
            sinks};
  p.group = p.q.heads / kv_heads;
  std::vector<Task> tasks;
  for (std::int64_t list = 0; list < p.q.tokens * kv_heads; ++list) {
    const auto first = args.rows.begin() + args.starts[static_cast<std::size_t>(list)];
    Task t{list / kv_heads,
           list % kv_heads,
           0,
           {first, args.rows.begin() + args.starts[static_cast<std::size_t>(list) + 1]}};
    for (const CacheRows& r : t.rows) t.cost += r.count;
    p.padded = std::max(p.padded, whole_vectors(t.cost));
    tasks.push_back(t);
  }
  ThreadPool& pool = ctx.stream.pool();
  const std::int64_t scores = p.group * p.padded, floats = scores + (args.k_scales.defined() ? kChunk * p.q.dim : 0);
  const Tensor scratch = ctx.empty({pool.size(), floats});
  share_out(tasks, pool, [&](const Task& t, int thread) {
    float* const own = scratch.data<float>() + thread * floats;
    run_task(p, t, own, own + scores);
  });
}

void run_attention_decode(const AttentionDecode& args, const ExecContext& ctx) {
  check(args);
  decode(args, nullptr, 0, ctx);
}

void run_gated_decode(const GatedDecode& args, const ExecContext& ctx) {
  check(args);
  decode(args.decode, args.gates.data<float>(), args.first, ctx);
}

const bool added[] = {attention_decode_kernel.add(Backend::cpu, {"grouped", run_attention_decode}),
                      gated_decode_kernel.add(Backend::cpu, {"grouped", run_gated_decode})};

}  // namespace
}  // namespace ring::cpu
