// Attention of one new query per sequence over its KV cache. The query heads of a KV head share their keys, so their
// scores are one small GEMM per range of keys. Each task computes one sequence and KV head.

#include <span>

#include "kernels/attention/cpu/common.h"
#include "kernels/attention/cpu/softmax.h"
#include "kernels/attention/pools/gated_decode.h"
#include "kernels/cpu/gemm.h"

namespace ring::cpu {
namespace {

struct Task {
  std::int64_t sequence, kv_head, cost;  // cost: number of keys
  std::span<const CacheRows> rows;
};

struct Problem {
  Heads q, out;
  const Tensor &k, &v;
  float scale;
  std::int64_t group, padded;  // group: query heads per KV head; padded: floats per row of scores
  const float* gates;          // [B,Hq], added to the scores of cache rows from `gated` on; null if there are none
  std::int32_t gated;
};

const float* cache_row(const Tensor& t, const Task& task, const CacheRows& rows) {
  return t.data<float>() + task.sequence * t.stride(0) + rows.first * t.stride(1) + task.kv_head * t.stride(2);
}

void add_gates(const Problem& p, const Task& t, std::int64_t count, float* scores) {
  const float* gates = p.gates + t.sequence * p.q.heads + t.kv_head * p.group;
  for (std::int64_t g = 0; g < p.group; ++g)
    for (std::int64_t j = 0; j < count; ++j) scores[g * p.padded + j] += gates[g];
}

// Computes the scores of all ranges of keys, concatenated.
void score(const Problem& p, const Task& t, float* scores) {
  for (const CacheRows& r : t.rows) {
    gemm({.transpose_b = true,
          .m = p.group,
          .n = r.count,
          .k = p.q.dim,
          .a = p.q.at(t.sequence, t.kv_head * p.group),
          .lda = p.q.head,
          .b = cache_row(p.k, t, r),
          .ldb = p.k.stride(1) * r.stride,
          .c = scores,
          .ldc = p.padded,
          .alpha = p.scale});
    if (p.gates && r.first >= p.gated) add_gates(p, t, r.count, scores);
    scores += r.count;
  }
}

void run_task(const Problem& p, const Task& t, float* scores) {
  const std::int64_t head = t.kv_head * p.group, padded = whole_vectors(t.cost);
  score(p, t, scores);
  for (std::int64_t g = 0; g < p.group; ++g) {
    float* row = scores + g * p.padded;
    std::fill(row + t.cost, row + padded, kMinusInf);
    const float max = row_max(row, padded), shift = max == kMinusInf ? 0 : max;
    const float total = row_exp(row, padded, shift), factor = total == 0 ? 0 : 1 / total;
    for (std::int64_t j = 0; j < t.cost; ++j) row[j] *= factor;
    std::fill_n(p.out.at(t.sequence, head + g), p.out.dim, 0.0f);
  }
  for (const CacheRows& r : t.rows) {
    gemm({.m = p.group,
          .n = p.q.dim,
          .k = r.count,
          .a = scores,
          .lda = p.padded,
          .b = cache_row(p.v, t, r),
          .ldb = p.v.stride(1) * r.stride,
          .c = p.out.at(t.sequence, head),
          .ldc = p.out.head,
          .beta = 1});
    scores += r.count;
  }
}

void decode(const AttentionDecode& args, const float* gates, std::int32_t gated, const ExecContext& ctx) {
  const std::int64_t kv_heads = args.k.dim(2);
  Problem p{heads_of(args.q), heads_of(args.out), args.k, args.v, args.scale, 0, 0, gates, gated};
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
  const Tensor scratch = ctx.empty({pool.size(), p.group * p.padded});
  float* scores = scratch.data<float>();
  share_out(tasks, pool, [&](const Task& t, int thread) { run_task(p, t, scores + thread * p.group * p.padded); });
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
