// Attention of one new query per sequence against its cache: scores of a group of query heads are one small product
// with the keys that they share. One task is one sequence and KV head.

#include "kernels/attention/attention.h"
#include "kernels/attention/cpu/common.h"
#include "kernels/attention/cpu/softmax.h"
#include "kernels/cpu/gemm.h"

namespace ring::cpu {
namespace {

struct Task {
  std::int64_t sequence, kv_head, cost;
};

struct Problem {
  Heads q, out;
  const Tensor &k, &v;
  const std::vector<std::int32_t>& lengths;
  float scale;
  std::int64_t group, padded;  // query heads per KV head; floats per row of scores
};

const float* cache_row(const Tensor& t, std::int64_t sequence, std::int64_t kv_head) {
  return t.data<float>() + sequence * t.stride(0) + kv_head * t.stride(2);
}

void run_task(const Problem& p, const Task& t, float* scores) {
  const std::int64_t length = p.lengths[static_cast<std::size_t>(t.sequence)], padded = whole_vectors(length);
  const std::int64_t head = t.kv_head * p.group;
  gemm({.transpose_b = true,
        .m = p.group,
        .n = length,
        .k = p.q.dim,
        .a = p.q.at(t.sequence, head),
        .lda = p.q.head,
        .b = cache_row(p.k, t.sequence, t.kv_head),
        .ldb = p.k.stride(1),
        .c = scores,
        .ldc = p.padded,
        .alpha = p.scale});
  for (std::int64_t g = 0; g < p.group; ++g) {
    float* row = scores + g * p.padded;
    std::fill(row + length, row + padded, kMinusInf);
    const float max = row_max(row, padded), shift = max == kMinusInf ? 0 : max;
    const float total = row_exp(row, padded, shift), factor = total == 0 ? 0 : 1 / total;
    for (std::int64_t j = 0; j < length; ++j) row[j] *= factor;
  }
  gemm({.m = p.group,
        .n = p.q.dim,
        .k = length,
        .a = scores,
        .lda = p.padded,
        .b = cache_row(p.v, t.sequence, t.kv_head),
        .ldb = p.v.stride(1),
        .c = p.out.at(t.sequence, head),
        .ldc = p.out.head});
}

void check_cache(const Tensor& t, const Heads& q, const char* name) {
  RING_CHECK(t.shape().size() == 4 && t.dim(0) == q.tokens && t.dim(3) == q.dim && t.stride(3) == 1,
             "attention_decode: ", name, " is ", describe(t), " for ", q.tokens, " queries of head dim ", q.dim);
  RING_CHECK(t.dim(2) > 0 && q.heads % t.dim(2) == 0, "attention_decode: ", q.heads, " query heads over ", t.dim(2),
             " KV heads");
}

void run_attention_decode(const AttentionDecode& args, const Context& ctx) {
  constexpr const char* op = "attention_decode";
  const Heads q = heads_of(args.q, op, "q"), out = heads_of(args.out, op, "out");
  check_same(q, out, op, "q and out");
  check_cache(args.k, q, "k");
  check_cache(args.v, q, "v");
  RING_CHECK(args.k.shape() == args.v.shape(), op, ": k is ", describe(args.k), ", v is ", describe(args.v));
  RING_CHECK(static_cast<std::int64_t>(args.lengths.size()) == q.tokens, op, ": ", args.lengths.size(), " lengths for ",
             q.tokens, " sequences");
  std::int64_t longest = 0;
  for (std::int32_t length : args.lengths) {
    RING_CHECK(length >= 0 && length <= args.k.dim(1), op, ": length ", length, " of a cache of ", args.k.dim(1));
    longest = std::max<std::int64_t>(longest, length);
  }
  const Problem p{q, out, args.k, args.v, args.lengths, args.scale, q.heads / args.k.dim(2), whole_vectors(longest)};
  std::vector<Task> tasks;
  for (std::int64_t b = 0; b < q.tokens; ++b)
    for (std::int64_t h = 0; h < args.k.dim(2); ++h) tasks.push_back({b, h, args.lengths[static_cast<std::size_t>(b)]});
  ThreadPool& pool = ctx.stream.pool();
  const Tensor scratch = ctx.empty({pool.size(), p.group * p.padded});
  float* scores = scratch.data<float>();
  share_out(tasks, pool, [&](const Task& t, int thread) { run_task(p, t, scores + thread * p.group * p.padded); });
}

const bool added = attention_decode_kernel.add(Backend::cpu, {"grouped", run_attention_decode});

}  // namespace
}  // namespace ring::cpu
