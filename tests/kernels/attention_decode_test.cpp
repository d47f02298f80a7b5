// Decoding: one new query per sequence over the rows of a cache that a list names. With gates and with caches in e4m3,
// on CPUs and GPUs.

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention/pools/gated_decode.h"
#include "kernels/row_encoding.h"
#include "tests/error_of.h"
#include "tests/kernels/fp8_checks.h"

namespace ring::test {
namespace {

struct Cache {
  std::int64_t batch, capacity, heads, kv_heads, dim;
  std::vector<std::vector<CacheRows>> lists;  // [batch * kv_heads]
  double scale = 0.4;
  Values gates = {};  // [batch, heads], for ranges from row `gated` on
  std::int32_t gated = 0;
  double sinks = 0;  // learned sinks have values in [-sinks, sinks]; 0: no sinks

  AttentionDecode args(const ExecContext& ctx, DType type = DType::f32) const {
    AttentionDecode a;
    const std::int64_t cache = batch * capacity * kv_heads * dim;
    a.q = make_tensor({batch, heads, dim}, type, random_values("q", batch * heads * dim), ctx);
    a.k = make_tensor({batch, capacity, kv_heads, dim}, type, random_values("k", cache), ctx);
    a.v = make_tensor({batch, capacity, kv_heads, dim}, type, random_values("v", cache), ctx);
    a.out = ctx.empty({batch, heads, dim}, type);
    a.scale = static_cast<float>(scale);
    if (sinks > 0) a.sinks = make_tensor({heads}, type, random_values("sinks", heads, sinks), ctx);
    a.starts = {0};
    for (const std::vector<CacheRows>& list : lists) {
      a.rows.insert(a.rows.end(), list.begin(), list.end());
      a.starts.push_back(static_cast<std::int32_t>(a.rows.size()));
    }
    return a;
  }
};

std::vector<std::int64_t> rows_of(const std::vector<CacheRows>& list) {
  std::vector<std::int64_t> rows;
  for (const CacheRows& r : list)
    for (std::int64_t i = 0; i < r.count; ++i) rows.push_back(r.first + i * r.stride);
  return rows;
}

// Returns the values of a cache in the type of the queries, or of e4m3 codes with scales.
Values cached_values(const Tensor& t, const Tensor& scales, const ExecContext& ctx) {
  if (!scales.defined()) return read_values(t, ctx);
  const Tensor whole = ctx.empty(t.shape(), DType::u8);
  const auto rows = static_cast<std::size_t>(t.numel() / t.dim(3)), dim = static_cast<std::size_t>(t.dim(3));
  ctx.stream.impl().copy_rows(whole.raw(), dim, t.raw(), static_cast<std::size_t>(t.stride(2)), dim, rows);
  const std::vector<std::uint8_t> codes = to_host<std::uint8_t>(whole, ctx.stream),
                                  exponents = to_host<std::uint8_t>(scales, ctx.stream);
  Values values;
  for (std::size_t i = 0; i < codes.size(); ++i)
    values.push_back(e4m3_value(codes[i]) * std::ldexp(1, exponents[i / dim] - 127));
  return values;
}

// Decodes as defined, one head after the other.
Values oracle(const Cache& c, const AttentionDecode& a, const ExecContext& ctx) {
  const Values q = read_values(a.q, ctx), k = cached_values(a.k, a.k_scales, ctx),
               v = cached_values(a.v, a.v_scales, ctx);
  const Values sinks = a.sinks.defined() ? read_values(a.sinks, ctx) : Values{};
  Values out(q.size());
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const std::int64_t kv = h * c.kv_heads / c.heads, at = (b * c.heads + h) * c.dim;
      double total = sinks.empty() ? 0 : std::exp(sinks[static_cast<std::size_t>(h)]);
      const std::vector<CacheRows>& list = c.lists[static_cast<std::size_t>(b * c.kv_heads + kv)];
      const auto add = [&](std::int64_t u, double gate) {
        const std::int64_t row = ((b * c.capacity + u) * c.kv_heads + kv) * c.dim;
        double score = 0;
        for (std::int64_t i = 0; i < c.dim; ++i)
          score += q[static_cast<std::size_t>(at + i)] * k[static_cast<std::size_t>(row + i)];
        const double weight = std::exp(score * c.scale + gate);
        total += weight;
        for (std::int64_t i = 0; i < c.dim; ++i)
          out[static_cast<std::size_t>(at + i)] += weight * v[static_cast<std::size_t>(row + i)];
      };
      for (const CacheRows& r : list)
        for (const std::int64_t u : rows_of({r}))
          add(u, c.gates.empty() || r.first < c.gated ? 0 : c.gates[static_cast<std::size_t>(b * c.heads + h)]);
      for (std::int64_t i = 0; i < c.dim && total > 0; ++i) out[static_cast<std::size_t>(at + i)] /= total;
    }
  return out;
}

void expect_oracle(const Cache& c) {
  const ExecContext ctx = poisoned_context(2);
  const AttentionDecode a = c.args(ctx);
  attention_decode_kernel(a, ctx);
  const Values got = read_values(a.out), want = oracle(c, a, ctx);
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-6) << i;
}

TEST(AttentionDecode, QueriesAttendToTheFirstRows) {
  Cache c{4, 150, 6, 2, 24, {}};
  for (std::int32_t length : {1, 0, 150, 33})
    for (int h = 0; h < 2; ++h) c.lists.push_back({{0, length, 1}});
  expect_oracle(c);
}

// Each head has its own list: strides, several ranges, empty ranges, repeated rows, no range at all.
TEST(AttentionDecode, QueriesAttendToTheRangesOfTheirHead) {
  Cache c{2,
          97,
          4,
          2,
          40,
          {{{0, 4, 1}, {60, 37, 1}},
           {{3, 30, 3}, {90, 7, 1}, {90, 0, 5}},
           {},
           {{96, 1, 1000}, {10, 20, 2}, {10, 40, 1}, {0, 1, 1}}}};
  expect_oracle(c);
  c.sinks = 6;
  expect_oracle(c);
}

TEST(AttentionDecode, LargeScoresStayFinite) {
  const Cache c{1, 20, 1, 1, 8, {{{0, 7, 1}, {8, 6, 2}}}, 1e30};
  const ExecContext ctx = poisoned_context(1);
  const AttentionDecode a = c.args(ctx);
  attention_decode_kernel(a, ctx);
  for (double x : read_values(a.out)) EXPECT_TRUE(std::isfinite(x));
}

TEST(AttentionDecode, RowsOutsideOfTheCacheAreRefused) {
  const ExecContext ctx = poisoned_context(1);
  const Cache c{1, 4, 2, 2, 8, {{{0, 4, 1}}, {{1, 2, 2}}}};
  EXPECT_NO_THROW(attention_decode_kernel(c.args(ctx), ctx));
  const auto refused = [&](auto change) {
    AttentionDecode a = c.args(ctx);
    change(a);
    EXPECT_THROW(attention_decode_kernel(a, ctx), Error);
  };
  for (const CacheRows bad : {CacheRows{0, 5, 1}, {4, 1, 1}, {-1, 1, 1}, {0, -1, 1}, {1, 3, 2}, {0, 2, 0}, {0, 2, -1}})
    refused([&](AttentionDecode& a) { a.rows[1] = bad; });
  refused([](AttentionDecode& a) { a.rows.pop_back(); });
  refused([](AttentionDecode& a) { a.starts = {0, 2}; });
  refused([](AttentionDecode& a) { a.starts = {0, 3, 2}; });
  refused([](AttentionDecode& a) { a.starts = {1, 1, 2}; });
  refused([](AttentionDecode& a) { a.starts = {}; });
}

TEST(AttentionDecode, WrongShapesAreRefused) {
  const ExecContext ctx = poisoned_context(1);
  const Cache c{1, 4, 2, 2, 8, {{{0, 1, 1}}, {{0, 1, 1}}}};
  const auto refused = [&](auto change) {
    AttentionDecode a = c.args(ctx);
    change(a);
    EXPECT_THROW(attention_decode_kernel(a, ctx), Error);
  };
  refused([&](AttentionDecode& a) { a.k = ctx.zeros({1, 4, 3, 8}); });
  refused([&](AttentionDecode& a) { a.v = ctx.zeros({1, 5, 2, 8}); });
  refused([&](AttentionDecode& a) { a.k = a.v = ctx.zeros({2, 4, 2, 8}); });
  refused([&](AttentionDecode& a) { a.k = a.v = ctx.zeros({1, 4, 2, 16}); });
  refused([&](AttentionDecode& a) { a.out = ctx.zeros({1, 2, 16}); });
  refused([&](AttentionDecode& a) { a.sinks = ctx.zeros({1}); });
  refused([&](AttentionDecode& a) {
    a.q = a.out = ctx.zeros({1, 2, 12});
    a.k = a.v = ctx.zeros({1, 4, 2, 12});
  });
}

class GatedDecoding : public OnTarget {
 protected:
  // Runs the kernel, compares its result with the definition and returns it.
  Values decoded(Cache c) const {
    const ExecContext ctx = context(2);
    const AttentionDecode a = c.args(ctx, GetParam().dtype);
    const Tensor gates = make_tensor({c.batch, c.heads}, GetParam().dtype, c.gates, ctx);
    gated_decode_kernel({a, gates, c.gated}, ctx);
    c.gates = read_values(gates, ctx);  // gates as rounded to the type
    const Values got = read_values(a.out, ctx), want = oracle(c, a, ctx);
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], GetParam().tolerance) << i;
    return got;
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, GatedDecoding, testing::Values(Target{Backend::cpu, DType::f32, 2e-6}));
INSTANTIATE_TEST_SUITE_P(Gpu, GatedDecoding,
                         testing::Values(Target{Backend::cuda, DType::f32, 1e-5},
                                         Target{Backend::cuda, DType::bf16, 1e-2}));

// Tokens and pools, pools of two sizes, pools alone, tokens alone, and a range that begins with the first pool.
Cache with_pools(std::int64_t dim) {
  Cache c{3,
          100,
          6,
          2,
          dim,
          {{{0, 20, 1}, {60, 9, 1}},
           {{60, 3, 1}},
           {{5, 1, 1}},
           {{7, 30, 2}, {60, 4, 1}, {70, 30, 1}},
           {{59, 1, 1}, {60, 1, 1}},
           {{0, 60, 1}, {60, 40, 1}}}};
  c.gates = random_values("gates", 3 * 6, 3), c.gated = 60;
  return c;
}

TEST_P(GatedDecoding, AddsGatesToTheRowsOfPools) {
  for (const std::int64_t dim : {8, 24, 64, 128, 256}) {
    SCOPED_TRACE(dim);
    Cache c = with_pools(dim);
    c.sinks = dim == 24 ? 4 : 0;
    decoded(c);
  }
}

// Sanity check of the comparisons above: gates change results of pools. Tokens have no gate.
TEST_P(GatedDecoding, GatesSayHowMuchPoolsCount) {
  const auto with = [&](double gate) {
    Cache c = with_pools(64);
    c.gates.assign(c.gates.size(), gate);
    return decoded(c);
  };
  const Values off = with(-40), even = with(0), on = with(40);
  const auto apart = [](const Values& a, const Values& b, std::size_t list) {
    double most = 0;  // over its three heads
    for (std::size_t i = list * 3 * 64; i < (list + 1) * 3 * 64; ++i) most = std::max(most, std::abs(a[i] - b[i]));
    return most;
  };
  for (const std::size_t tokens_and_pools : {0u, 3u, 4u, 5u}) {
    EXPECT_GT(apart(off, even, tokens_and_pools), 0.05) << tokens_and_pools;
    EXPECT_GT(apart(on, even, tokens_and_pools), 0.05) << tokens_and_pools;
  }
  for (const std::size_t alone : {1u, 2u}) EXPECT_LE(apart(off, on, alone), GetParam().tolerance) << alone;
}

// Caches in e4m3.
class CodedDecoding : public OnTarget {
 protected:
  // Returns the arguments with k and v encoded, in rows of heads that are `width` bytes apart. Rows have very different
  // scales.
  static AttentionDecode coded(const Cache& c, std::int64_t width, const ExecContext& ctx) {
    AttentionDecode a = c.args(ctx, GetParam().dtype);
    const std::int64_t rows = c.batch * c.capacity;
    for (const auto& [t, scales] : {std::pair{&a.k, &a.k_scales}, std::pair{&a.v, &a.v_scales}}) {
      Values x = read_values(*t, ctx);
      for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = std::ldexp(x[i], static_cast<int>(i / static_cast<std::size_t>(c.dim)) % 9 - (t == &a.k ? 7 : 4));
      const EncodedRows e{ctx.empty({rows, c.kv_heads, c.dim}, DType::u8), ctx.empty({rows, c.kv_heads}, DType::u8)};
      encode_rows_kernel({make_tensor({rows, c.kv_heads, c.dim}, GetParam().dtype, x, ctx), e}, ctx);
      *t = ctx.empty({c.batch, c.capacity, c.kv_heads, width}, DType::u8).narrow(3, width - c.dim, c.dim);
      const auto bytes = static_cast<std::size_t>(c.dim);
      ctx.stream.impl().copy_rows(t->raw(), static_cast<std::size_t>(width), e.values.raw(), bytes, bytes,
                                  static_cast<std::size_t>(rows * c.kv_heads));
      *scales = e.scales.view({c.batch, c.capacity, c.kv_heads});
    }
    return a;
  }
  static void expect_decoded(const Cache& c, const AttentionDecode& a, const ExecContext& ctx) {
    const Values got = read_values(a.out, ctx), want = oracle(c, a, ctx);
    double largest = 0;
    for (const double x : want) largest = std::max(largest, std::abs(x));
    EXPECT_GT(largest, 0);
    for (std::size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got[i], want[i], GetParam().tolerance * largest) << c.dim << ", element " << i;
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, CodedDecoding, testing::Values(Target{Backend::cpu, DType::f32, 2e-6}));
INSTANTIATE_TEST_SUITE_P(Gpu, CodedDecoding,
                         testing::Values(Target{Backend::cuda, DType::f32, 1e-5},
                                         Target{Backend::cuda, DType::bf16, 1e-2}));

// Ranges that are longer and shorter than the chunks of the CPU kernel, strided and repeated rows, and no range.
Cache coded_cache(std::int64_t dim) {
  return {
      2,
      170,
      6,
      2,
      dim,
      {{{0, 4, 1}, {33, 137, 1}}, {{3, 80, 2}, {90, 7, 1}, {90, 0, 5}}, {}, {{169, 1, 1}, {10, 64, 1}, {0, 65, 1}}}};
}

TEST_P(CodedDecoding, FollowsTheDefinitionOnDecodedValues) {
  const ExecContext ctx = context(2);
  for (const std::int64_t dim : {8, 24, 40, 64, 72, 80, 96, 128, 160, 256})
    for (const std::int64_t gap : {0, 8, 3}) {  // bytes between rows of heads; codes are not aligned after 3
      Cache c = coded_cache(dim);
      c.sinks = gap == 8 ? 6 : 0;
      const AttentionDecode a = coded(c, dim + gap, ctx);
      attention_decode_kernel(a, ctx);
      expect_decoded(c, a, ctx);
    }
}

TEST_P(CodedDecoding, AddsGatesToScaledScores) {
  const ExecContext ctx = context(2);
  Cache c = with_pools(64);
  const AttentionDecode a = coded(c, 64, ctx);
  const Tensor gates = make_tensor({c.batch, c.heads}, GetParam().dtype, c.gates, ctx);
  gated_decode_kernel({a, gates, c.gated}, ctx);
  c.gates = read_values(gates, ctx);
  expect_decoded(c, a, ctx);
}

// A NaN key or value makes the heads that see it NaN, also if they see no other row, and in caches without codes. Other
// heads stay finite. The last two lists have more rows than a thread block of a GPU takes at once: finite keys follow
// the NaN where it was taken.
TEST_P(CodedDecoding, PropagatesNaN) {
  const ExecContext ctx = context(2);
  const std::vector<CacheRows> lists[] = {
      {{3, 1, 1}}, {{3, 1, 1}, {20, 5, 1}}, {{3, 597, 1}}, {{3, 1, 1}, {4, 596, 1}}};
  for (const std::vector<CacheRows>& list : lists)
    for (const bool encoded : {true, false})
      for (const bool key : {true, false}) {
        SCOPED_TRACE(
            str(list.size(), " ranges, ", list.back().count, encoded ? " codes" : " numbers", key ? " of k" : ""));
        const Cache c{1, 600, 4, 2, 16, {list, {{0, 9, 1}}}};
        const AttentionDecode a = encoded ? coded(c, 16, ctx) : c.args(ctx, GetParam().dtype);
        const std::vector<std::uint8_t> codes(16, kE4m3NaN);
        copy((key ? a.k : a.v).view({600 * 2, 16}).narrow(0, 3 * 2, 1).view({16}),  // row 3 of KV head 0
             encoded ? from_host(codes, ctx.stream) : make_tensor({16}, GetParam().dtype, Values(16, kNaN), ctx),
             ctx.stream);
        attention_decode_kernel(a, ctx);
        const Values got = read_values(a.out, ctx);
        for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i < 2 * 16) << i;
      }
}

TEST_P(CodedDecoding, RefusesWrongScales) {
  const ExecContext ctx = context(1);
  const Cache c = coded_cache(8);
  const auto refused = [&](auto change) {
    AttentionDecode a = coded(c, 8, ctx);
    change(a);
    EXPECT_THROW(attention_decode_kernel(a, ctx), Error);
  };
  refused([](AttentionDecode& a) { a.k_scales = {}; });
  refused([](AttentionDecode& a) { a.v_scales = {}; });
  refused([](AttentionDecode& a) { a.k_scales = a.v_scales = {}; });
  refused([](AttentionDecode& a) { a.k_scales = a.k_scales.narrow(1, 0, 9); });
  refused([&](AttentionDecode& a) { a.v_scales = ctx.zeros({2, 170, 2}); });
  refused([&](AttentionDecode& a) { a.k = a.v = ctx.zeros({2, 170, 2, 8}); });
  for (const bool key : {true, false}) {  // the other one has codes
    AttentionDecode a = coded(c, 8, ctx);
    (key ? a.k : a.v) = ctx.zeros({2, 170, 2, 8}, GetParam().dtype);
    (key ? a.k_scales : a.v_scales) = {};
    const std::string error = error_of([&] { attention_decode_kernel(a, ctx); });
    EXPECT_NE(error.find("only one of k and v has scales"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace ring::test
