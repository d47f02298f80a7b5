// Properties of attention's kernels that the op cases do not check: log-sum-exp, strided views, rows outside all
// sequences, no look into the future, one long sequence on many threads, and refused arguments.

#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/philox.h"
#include "tests/cases/attention_oracle.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/values.h"

namespace ring::test {
namespace {

// q | k | v in the columns of one matrix, as in the output of a fused projection.
struct Problem {
  AttentionShape shape;
  ExecContext ctx;
  Tensor qkv, q, k, v, out, lse;

  Problem(const AttentionShape& s, int threads, std::int64_t rows = -1) : shape(s), ctx(poisoned_context(threads)) {
    const std::int64_t n = rows < 0 ? s.tokens() : rows, d = s.dim;
    const Values values = random_values("attention_test", n * (s.heads + 2 * s.kv_heads) * d);
    qkv = make_tensor({n, (s.heads + 2 * s.kv_heads) * d}, DType::f32, values, ctx);
    q = qkv.narrow(1, 0, s.heads * d).split_dim(1, d);
    k = qkv.narrow(1, s.heads * d, s.kv_heads * d).split_dim(1, d);
    v = qkv.narrow(1, (s.heads + s.kv_heads) * d, s.kv_heads * d).split_dim(1, d);
    out = ctx.empty({n, s.heads, d});
    lse = ctx.empty({s.heads, n});
  }
  Attention args() const {
    const std::vector<Span> spans = spans_of(shape.offsets);
    return {q, k, v, out, lse, spans, spans, static_cast<float>(shape.scale), shape.pattern, {}};
  }
  void forward() const { attention_kernel(args(), ctx); }

  // Returns dq | dk | dv in the columns of one matrix, for a fixed gradient of out.
  Tensor backward() const {
    const std::int64_t d = shape.dim, hq = shape.heads, hk = shape.kv_heads;
    const Tensor dout = make_tensor(out.shape(), DType::f32, random_values("dout", out.numel()), ctx);
    const Tensor dqkv = ctx.empty(qkv.shape());
    attention_backward_kernel(
        {q, k, v, out, lse, dout, dqkv.narrow(1, 0, hq * d).split_dim(1, d),
         dqkv.narrow(1, hq * d, hk * d).split_dim(1, d), dqkv.narrow(1, (hq + hk) * d, hk * d).split_dim(1, d),
         spans_of(shape.offsets), spans_of(shape.offsets), static_cast<float>(shape.scale), shape.pattern},
        ctx);
    return dqkv;
  }
};

Values packed(const Tensor& t) {
  Values out;
  for (std::int64_t n = 0; n < t.dim(0); ++n)
    for (std::int64_t h = 0; h < t.dim(1); ++h) {
      const float* p = t.data<float>() + n * t.stride(0) + h * t.stride(1);
      out.insert(out.end(), p, p + t.dim(2));
    }
  return out;
}

bool same_bits(const float* a, const float* b, std::int64_t n) {
  return std::memcmp(a, b, static_cast<std::size_t>(n) * sizeof(float)) == 0;
}

TEST(Attention, StridedViewsGiveTheDefinedResults) {
  for (bool causal : {true, false}) {
    const Problem p({offsets_of({1, 63, 64, 65, 129, 200}), 4, 2, 24, 0.7, dense(causal)}, 3);
    p.forward();
    const AttentionResult want = attention_oracle(p.shape, packed(p.q), packed(p.k), packed(p.v));
    EXPECT_LT(relative_error(read_values(p.lse), want.lse), 1e-6);
    EXPECT_LT(relative_error(read_values(p.out), want.out), 1e-6);
  }
}

TEST(Attention, FutureDoesNotLeak) {
  for (int threads : {1, 3})
    for (std::int64_t t : {1, 31, 63, 64, 65, 127, 128, 129, 190}) {
      const AttentionShape shape{offsets_of({191, 40}), 4, 2, 32, 0.3, dense()};
      const Problem a(shape, threads), b(shape, threads);
      float* changed = b.qkv.data<float>() + t * b.qkv.dim(1);
      for (std::int64_t i = 0; i < b.qkv.dim(1); ++i) changed[i] = 10 * changed[i] + 1;
      a.forward();
      b.forward();
      const std::int64_t row = shape.heads * shape.dim, n = shape.tokens();
      EXPECT_TRUE(same_bits(a.out.data<float>(), b.out.data<float>(), t * row)) << "token " << t;
      EXPECT_FALSE(same_bits(a.out.data<float>() + t * row, b.out.data<float>() + t * row, row)) << "token " << t;
      EXPECT_TRUE(same_bits(a.out.data<float>() + 191 * row, b.out.data<float>() + 191 * row, 40 * row));
      for (std::int64_t h = 0; h < shape.heads; ++h)
        EXPECT_TRUE(same_bits(a.lse.data<float>() + h * n, b.lse.data<float>() + h * n, t)) << "token " << t;
    }
}

TEST(Attention, RowsOutsideOfSequencesAreEmpty) {
  const AttentionShape shape{{3, 10, 10, 80}, 2, 1, 8, 0.5, dense()};
  const Problem p(shape, 2, 85);
  p.forward();
  const Tensor d = p.backward();
  for (std::int64_t n = 0; n < 85; ++n) {
    const bool outside = n < 3 || n >= 80;
    for (std::int64_t h = 0; h < 2; ++h) {
      const float lse = p.lse.data<float>()[h * 85 + n];
      EXPECT_EQ(lse == -kInfinity, outside) << "row " << n;
      EXPECT_FALSE(std::isnan(lse)) << "row " << n;
    }
    for (std::int64_t i = 0; i < 16; ++i) {
      EXPECT_TRUE(std::isfinite(p.out.data<float>()[n * 16 + i]));
      EXPECT_EQ(p.out.data<float>()[n * 16 + i] == 0, outside) << "row " << n;
    }
    for (std::int64_t i = 0; i < d.dim(1); ++i) {
      const float x = d.data<float>()[n * d.dim(1) + i];
      EXPECT_TRUE(outside ? x == 0 : std::isfinite(x)) << "row " << n << " column " << i;
    }
  }
}

// A row whose keys are all on other devices has log-sum-exp -inf. The row contributes nothing, whatever its scores are.
TEST(Attention, BackwardOfAnEmptyRowIsZero) {
  const Problem p({offsets_of({20}), 1, 1, 8, 0.5, dense()}, 1);
  p.forward();
  p.lse.data<float>()[7] = -kInfinity;
  const Tensor d = p.backward();
  for (std::int64_t i = 0; i < d.numel(); ++i) ASSERT_TRUE(std::isfinite(d.data<float>()[i]));
  for (std::int64_t i = 0; i < 8; ++i) EXPECT_EQ(d.data<float>()[7 * d.dim(1) + i], 0);
}

TEST(Attention, InfiniteScoresOfOneSignStayFinite) {
  const Problem p({offsets_of({70}), 1, 1, 8, 1, dense()}, 1);
  for (std::int64_t i = 0; i < 8; ++i) p.qkv.data<float>()[i] = 1e30f;  // query 0: its scores overflow f32
  for (std::int64_t i = 8; i < 16; ++i) p.qkv.data<float>()[i] = -1e30f;
  p.forward();
  for (std::int64_t i = 8; i < p.out.numel(); ++i) ASSERT_TRUE(std::isfinite(p.out.data<float>()[i])) << i;
}

// One sequence and KV head on many threads: keys are split among threads, and their shares of dq are added.
TEST(Attention, OneLongSequenceRunsOnManyThreads) {
  for (bool causal : {true, false}) {
    const AttentionShape shape{offsets_of({1000, 30}), 2, 1, 16, 0.3, dense(causal)};
    const Problem one(shape, 1), many(shape, 5);
    one.forward();
    many.forward();
    EXPECT_TRUE(same_bits(one.out.data<float>(), many.out.data<float>(), one.out.numel()));
    const Tensor want = one.backward(), got = many.backward(), again = many.backward();
    EXPECT_LT(relative_error(read_values(got), read_values(want)), 1e-6);
    EXPECT_TRUE(same_bits(got.data<float>(), again.data<float>(), got.numel()));
  }
}

TEST(Attention, WrongShapesAreRefused) {
  const Problem p({offsets_of({10}), 4, 2, 8, 1, dense()}, 1);
  const auto refused = [&](auto change) {
    Attention args = p.args();
    change(args);
    EXPECT_THROW(attention_kernel(args, p.ctx), Error);
  };
  refused([&](Attention& a) { a.queries = spans_of({0, 11}); });
  refused([&](Attention& a) { a.keys = spans_of({0, 11}); });
  refused([&](Attention& a) { a.queries = a.keys = {{0, 6}, {4, 6}}; });
  refused([&](Attention& a) { a.queries = {{-1, 10}}; });
  refused([&](Attention& a) { a.keys = {}; });
  refused([&](Attention& a) { a.queries = a.keys = {{.first = 0, .count = 10, .position = 3, .document = 4}}; });
  refused([&](Attention& a) { a.carry = p.ctx.zeros({10, 2, 8}); });
  refused([&](Attention& a) { a.carry = p.ctx.zeros({10, 4, 8}, DType::bf16); });
  refused([&](Attention& a) { a.pattern = test::window(-1); });
  refused([&](Attention& a) { a.pattern = test::window(4, -1); });
  refused([&](Attention& a) { a.pattern = test::dilated({}); });
  refused([&](Attention& a) { a.pattern = test::dilated({{8, 2}}); });
  refused([&](Attention& a) { a.pattern = test::dilated({{8, 1}, {8, 9}}); });
  refused([&](Attention& a) { a.pattern = test::dilated({{8, 1}, {12, 2}}, true); });
  refused([&](Attention& a) { a.pattern = {.branches = {{.segment = 8, .window = 4}}, .dedup = true}; });
  refused([&](Attention& a) {
    a.pattern = test::block_sparse(64, {{.local = 1}});
    a.pattern.branches = {{.window = 4}};
  });
  refused([&](Attention& a) { a.lse = p.ctx.zeros({2, 10}); });
  refused([&](Attention& a) { a.out = p.ctx.zeros({10, 2, 8}); });
  refused([&](Attention& a) { a.v = p.ctx.zeros({10, 1, 8}); });
  refused([&](Attention& a) { a.k = a.v = p.ctx.zeros({10, 3, 8}); });
  refused([&](Attention& a) { a.k = a.v = p.ctx.zeros({9, 2, 8}); });
  refused([&](Attention& a) { a.q = p.ctx.zeros({10, 32}); });
  refused([&](Attention& a) { a.dropout.rate = 1; });
  refused([&](Attention& a) { a.dropout.rate = -0.1f; });
  refused([&](Attention& a) { a.dropout = {.rate = 0.1f, .first_head = (1 << 16) - 3}; });
  refused([&](Attention& a) { a.dropout = {.rate = 0.1f, .rows = p.ctx.zeros({9}, DType::i32)}; });
  refused([&](Attention& a) { a.dropout = {.rate = 0.1f, .rows = p.ctx.zeros({10})}; });
  refused([&](Attention& a) {
    a.q = a.out = p.ctx.zeros({10, 4, 12});
    a.k = a.v = p.ctx.zeros({10, 2, 12});
  });
}

}  // namespace
}  // namespace ring::test
