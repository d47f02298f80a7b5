// Our own CUDA attention, dense, candidate by candidate: heads of many widths, groups, ragged documents, views of a
// fused product, and properties of causal masks. Other patterns: gpu_attention_pattern_test.cpp.

#include <cmath>
#include <cstring>

#include "tests/kernels/gpu_attention_problem.h"
#include "tests/kernels/poison_allocator.h"

namespace ring::test {
namespace {

std::vector<std::int32_t> lengths(const std::vector<std::int32_t>& all, std::int32_t first = 0) {
  return offsets_of(all, first);
}

const std::vector<std::int64_t> kDims = {8, 24, 40, 64, 72, 80, 96, 128, 160, 256};

void expect_right_on_tensor_cores(const GpuProblem& p) { expect_right(on_tensor_cores(p), p); }

// Every width with every kernel; lengths on both sides of each block size.
TEST_F(GpuAttention, TensorCoresAtEveryWidth) {
  for (std::int64_t dim : kDims)
    for (bool causal : {true, false}) expect_right_on_tensor_cores({lengths({1, 65, 130}), 2, 1, dim, dense(causal)});
}
TEST_F(GpuAttention, SimtAtEveryWidth) {
  for (std::int64_t dim : kDims)
    for (bool causal : {true, false})
      for (DType type : {DType::f32, DType::bf16})
        expect_right("own_simt", {lengths({1, 65, 130}), 2, 1, dim, dense(causal), type});
}

TEST_F(GpuAttention, TensorCoresAtEveryLength) {
  for (std::int32_t length : {1, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 192, 300})
    for (std::int64_t dim : {64, 128, 256})
      for (bool causal : {true, false}) {
        expect_right_on_tensor_cores({lengths({length}), 1, 1, dim, dense(causal)});
        expect_right_on_tensor_cores({lengths({length, length, length}), 2, 2, dim, dense(causal), DType::bf16, false});
      }
}
TEST_F(GpuAttention, SimtAtEveryLength) {
  for (std::int32_t length : {1, 7, 63, 64, 65, 127, 128, 129, 300})
    for (bool causal : {true, false})
      expect_right("own_simt", {lengths({length}), 1, 1, 64, dense(causal), DType::f32});
}

TEST_F(GpuAttention, LongRows) {
  for (std::int64_t dim : {64, 96, 128, 256})
    for (bool causal : {true, false}) expect_right_on_tensor_cores({lengths({1000}), 2, 1, dim, dense(causal)});
  for (std::int64_t dim : {72, 128})  // longer than rows for which wide heads run the backward as two kernels
    for (bool causal : {true, false}) expect_right_on_tensor_cores({lengths({1100, 70}), 2, 1, dim, dense(causal)});
  expect_right("own_simt", {lengths({1000}), 2, 1, 64, dense(), DType::f32});
  expect_right("own_simt", {lengths({1000}), 1, 1, 256, dense(false), DType::f32});
}

TEST_F(GpuAttention, Groups) {
  for (std::int64_t group : {1, 2, 4, 8})
    for (std::int64_t dim : {64, 128, 256}) {
      expect_right_on_tensor_cores({lengths({150, 150}), 2 * group, 2, dim});
      expect_right_on_tensor_cores({lengths({200, 33}), group, 1, dim, dense(false)});
      expect_right("own_simt", {lengths({90, 33}), 2 * group, 2, dim, dense(), DType::f32});
    }
}

// Some documents are empty, and some tokens belong to no document: their results are 0, their log-sum-exp -inf.
TEST_F(GpuAttention, RaggedDocumentsAndRowsOfNone) {
  GpuProblem p{lengths({40, 0, 1, 200, 0, 64}, 5), 4, 2, 64};
  p.after = 9;
  for (bool fused : {true, false})
    for (bool causal : {true, false})
      for (DType type : {DType::bf16, DType::f32}) {
        p.fused = fused, p.pattern = dense(causal), p.dtype = type;
        expect_right(own_candidates(p), p);
      }
  p = {{3, 131, 259}, 2, 2, 128};  // equal lengths, but not from the first token
  p.after = 300;
  expect_right_on_tensor_cores(p);
  p = {{0, 0, 0}, 2, 1, 64};  // no document
  p.after = 70;
  expect_right(own_candidates(p), p);
}

TEST_F(GpuAttention, NothingToDo) {
  for (const char* name : {"own_mma", "own_simt"}) expect_right(name, {{0}, 2, 1, 64});
}

// More heads and documents than fit into the cache at once: they run in sections, of which the last is smaller.
TEST_F(GpuAttention, ManyShortDocuments) {
  const std::vector<std::int32_t> even(37, 48);
  std::vector<std::int32_t> odd(37, 48);
  odd[11] = 20;
  for (const auto& all : {even, odd})
    for (bool causal : {true, false}) {
      for (std::int64_t dim : {64, 256}) expect_right_on_tensor_cores({lengths(all), 6, 2, dim, dense(causal)});
      expect_right("own_simt", {lengths(all), 3, 3, 40, dense(causal), DType::f32});
    }
}

TEST_F(GpuAttention, RowsThatAreNotAlignedGoToThePlainKernel) {
  const ExecContext ctx = poisoned_device_context({Backend::cuda, 0});
  GpuProblem p{lengths({100}), 2, 1, 64};
  p.shift = 4;
  const GpuOperands qkv(p, p.dtype, ctx);
  const Tensor out = ctx.empty({100, 2, 64}, DType::bf16), lse = ctx.empty({2, 100});
  const Attention args{qkv.parts[0], qkv.parts[1], qkv.parts[2], out, lse, p.spans(), p.spans(), 1, p.pattern, {}};
  EXPECT_FALSE(candidate(attention_kernel, "own_mma").supports(args, ctx));
  expect_right("own_simt", p);
  p.dtype = DType::f32;
  p.shift = 3;
  expect_right("own_simt", p);
}

TEST_F(GpuAttention, TwoRunsHaveTheSameBits) {
  for (const GpuProblem& p :
       {GpuProblem{lengths({700, 300, 65}), 8, 2, 64}, GpuProblem{lengths({2900, 1500}), 4, 4, 64},
        GpuProblem{lengths({1900, 1500}), 4, 2, 128}, GpuProblem{lengths({513, 513}), 4, 4, 128, dense(false)},
        GpuProblem{lengths({300}), 2, 1, 256}}) {
    const AttentionInputs in = gpu_inputs(p);
    for (const std::string& name : own_candidates(p)) {
      const AttentionResults first = run_gpu(name, p, in);
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(run_gpu(name, p, in) == first) << name << ": " << text(p);
    }
  }
}

// Token t changes. Outputs of earlier rows must stay bit-identical.
TEST_F(GpuAttention, TheFutureDoesNotLeak) {
  for (std::int64_t dim : {64, 128, 256})
    for (const std::string& name : own_candidates({lengths({300}), 2, 1, dim}))
      for (std::int64_t t : {1, 63, 64, 127, 150, 255, 299}) {
        const GpuProblem p{lengths({300}), 2, 1, dim};
        AttentionInputs in = gpu_inputs(p);
        const AttentionResults before = run_gpu(name, p, in);
        for (Values* v : {&in.q, &in.k, &in.v}) {
          const auto row = static_cast<std::int64_t>(v->size()) / 300;
          for (std::int64_t i = t * row; i < (t + 1) * row; ++i) (*v)[static_cast<std::size_t>(i)] = i % 2 ? 3 : -2;
        }
        const AttentionResults after = run_gpu(name, p, in);
        const auto same = static_cast<std::ptrdiff_t>(t * p.heads * dim);
        EXPECT_TRUE(std::equal(before.out.begin(), before.out.begin() + same, after.out.begin())) << name << t;
        EXPECT_FALSE(before.out == after.out);
        for (std::int64_t h = 0; h < p.heads; ++h)
          EXPECT_TRUE(
              std::equal(before.lse.begin() + h * 300, before.lse.begin() + h * 300 + t, after.lse.begin() + h * 300));
      }
}

// With scores of up to 1e9, weights are 0 or 1 nearly everywhere, and nothing overflows.
TEST_F(GpuAttention, HugeScoresGiveNoNaN) {
  for (std::int64_t dim : {64, 128})
    for (const std::string& name : own_candidates({lengths({200, 70}), 2, 1, dim}))
      for (bool causal : {true, false}) {
        GpuProblem p{lengths({200, 70}), 2, 1, dim, dense(causal)};
        p.size = 1e4;
        const AttentionInputs in = gpu_inputs(p);
        const AttentionResults got = run_gpu(name, p, in), want = reference(p.problem(), in);
        EXPECT_LE(distance_of(got.out, want.out), 1e-2 * norm_of(want.out)) << name;
        for (const Values& v : {got.lse, got.dq, got.dk, got.dv})
          for (double x : v) ASSERT_TRUE(std::isfinite(x)) << name;
      }
}

// Rows of a sequence's KV head: none; the first; the first and a range at the end; strided ones with repeated rows.
std::vector<std::vector<CacheRows>> decode_lists(std::int64_t kv_heads) {
  const std::vector<std::vector<CacheRows>> some = {
      {}, {{0, 1, 1}}, {{0, 4, 1}, {200, 77, 1}}, {{1, 150, 2}, {290, 20, 1}, {0, 0, 1}, {5, 61, 5}}, {{0, 310, 1}}};
  std::vector<std::vector<CacheRows>> lists;
  for (std::int64_t i = 0; i < 4 * kv_heads; ++i) lists.push_back(some[static_cast<std::size_t>(i) % some.size()]);
  return lists;
}

TEST_F(GpuAttention, DecodesOneQueryPerSequence) {
  const std::int64_t sequences = 4, capacity = 310, heads = 4;
  for (DType type : {DType::f32, DType::bf16})
    for (std::int64_t dim : kDims)
      for (std::int64_t kv_heads : {1, 4}) {
        const ExecContext ctx = poisoned_device_context({Backend::cuda, 0});
        const std::int64_t cache = sequences * capacity * kv_heads * dim;
        const Values q = rounded(random_values("q", sequences * heads * dim, 3), type);
        const Values k = rounded(random_values("k", cache), type), v = rounded(random_values("v", cache), type);
        const std::vector<std::vector<CacheRows>> lists = decode_lists(kv_heads);
        const Shape shape{sequences, capacity, kv_heads, dim};
        AttentionDecode args{.q = upload(q, {sequences, heads, dim}, type, ctx),
                             .k = upload(k, shape, type, ctx),
                             .v = upload(v, shape, type, ctx),
                             .out = ctx.empty({sequences, heads, dim}, type),
                             .rows = {},
                             .starts = {0},
                             .scale = 0.25f};
        for (const std::vector<CacheRows>& list : lists) {
          args.rows.insert(args.rows.end(), list.begin(), list.end());
          args.starts.push_back(static_cast<std::int32_t>(args.rows.size()));
        }
        run_candidate(attention_decode_kernel, "own_simt", args, ctx);
        Values want(q.size());
        for (std::int64_t b = 0; b < sequences; ++b)
          for (std::int64_t h = 0; h < heads; ++h) {
            const std::int64_t kv = h * kv_heads / heads;
            double total = 0, *row = &want[static_cast<std::size_t>((b * heads + h) * dim)];
            for (const CacheRows& r : lists[static_cast<std::size_t>(b * kv_heads + kv)])
              for (std::int64_t u = 0; u < r.count; ++u) {
                const std::int64_t at = ((b * capacity + r.first + u * r.stride) * kv_heads + kv) * dim;
                double score = 0;
                for (std::int64_t i = 0; i < dim; ++i) score += q[(b * heads + h) * dim + i] * k[at + i];
                const double weight = std::exp(0.25 * score);
                total += weight;
                for (std::int64_t i = 0; i < dim; ++i) row[i] += weight * v[at + i];
              }
            for (std::int64_t i = 0; i < dim && total > 0; ++i) row[i] /= total;
          }
        EXPECT_LE(distance_of(download(args.out, ctx), want), (type == DType::bf16 ? 5e-3 : 1e-5) * norm_of(want))
            << dim << " " << type << " " << kv_heads;
      }
}

}  // namespace
}  // namespace ring::test
