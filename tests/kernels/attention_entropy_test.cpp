// The entropy of attention that a run can log, against its definition in f64 over the pairs of the pattern.
#include <gtest/gtest.h>

#include "autograd/ops.h"
#include "tests/cases/attention_oracle.h"
#include "tests/kernels/poison_allocator.h"

namespace ring::test {
namespace {

struct Entropies {
  Values sums, rows;  // per head
};

// Returns values that are larger than keys: reading them instead of keys would change the entropy.
Values values_of(const AttentionShape& a) {
  Values v;
  for (std::int64_t t = 0; t < a.tokens(); ++t)
    v.insert(v.end(), static_cast<std::size_t>(a.kv_heads * a.dim), 100.0 + static_cast<double>(t));
  return v;
}

// Returns -sum p log p over the keys of each query; a key that counts several times is as many keys.
Entropies oracle(const AttentionShape& a, const Values& q, const Values& k) {
  Entropies e{Values(static_cast<std::size_t>(a.heads)), Values(static_cast<std::size_t>(a.heads))};
  for (std::size_t b = 0; b + 1 < a.offsets.size(); ++b)
    for (std::int32_t t = a.offsets[b]; t < a.offsets[b + 1]; ++t)
      for (std::int64_t h = 0; h < a.heads; ++h) {
        const std::int64_t kv = h * a.kv_heads / a.heads;
        const std::int32_t row = row_start(a, a.offsets[b]);
        Values scores;
        for (std::int32_t u = a.offsets[b]; u < a.offsets[b + 1]; ++u) {
          double s = 0;
          for (std::int64_t i = 0; i < a.dim; ++i)
            s += a.scale * q[static_cast<std::size_t>((t * a.heads + h) * a.dim + i)] *
                 k[static_cast<std::size_t>((u * a.kv_heads + kv) * a.dim + i)];
          const int times =
              multiplicity(a.pattern, static_cast<std::int32_t>(kv), t - row, u - row, a.offsets[b] - row);
          scores.insert(scores.end(), static_cast<std::size_t>(times), s);
        }
        for (const Values& key : PoolMeans(a, k, values_of(a), kv, a.offsets[b], t).keys) {
          double s = 0;
          for (std::int64_t i = 0; i < a.dim; ++i)
            s +=
                a.scale * q[static_cast<std::size_t>((t * a.heads + h) * a.dim + i)] * key[static_cast<std::size_t>(i)];
          scores.push_back(s + (a.gates.empty() ? 0 : a.gates[static_cast<std::size_t>(t * a.heads + h)]));
        }
        double total = 0;
        for (const double s : scores) total += std::exp(s);
        for (const double s : scores)
          e.sums[static_cast<std::size_t>(h)] -= std::exp(s) / total * (s - std::log(total));
        e.rows[static_cast<std::size_t>(h)] += !scores.empty();
      }
  return e;
}

Values measure(const AttentionShape& a, const Values& q, const Values& k, const ExecContext& ctx, DType type) {
  const std::int64_t q_width = a.heads * a.dim, k_width = a.kv_heads * a.dim;
  const auto n = static_cast<std::size_t>(a.tokens());
  Values qkv;
  const Values v = values_of(a);
  for (std::size_t t = 0; t < n; ++t) {
    const auto row = [&](const Values& x, std::int64_t width) {
      const auto from = x.begin() + static_cast<std::ptrdiff_t>(t) * width;
      qkv.insert(qkv.end(), from, from + width);
    };
    row(q, q_width);
    row(k, k_width);
    row(v, k_width);
  }
  std::vector<Tensor> entropies;
  ring::Run run{.ctx = ctx, .probes = {.entropies = &entropies}};
  SelfAttention options{.heads = a.heads, .kv_heads = a.kv_heads, .head_dim = a.dim};
  options.attention = {.scale = static_cast<float>(a.scale), .pattern = a.pattern};
  if (!a.pooling.empty()) options.pooling = {make_tensor({std::ssize(a.pooling)}, type, a.pooling, ctx), nullptr};
  if (!a.gates.empty()) options.pool_gates = {make_tensor({a.tokens(), a.heads}, type, a.gates, ctx), nullptr};
  const Var in{make_tensor({a.tokens(), q_width + 2 * k_width}, type, qkv, ctx), nullptr};
  self_attention(run, in, {.offsets = a.offsets, .rows = a.rows}, options);
  RING_CHECK(entropies.size() == 1, entropies.size(), " entropies of one attention");
  return read_values(entropies[0], ctx);
}

void expect_oracle(const AttentionShape& a, const ExecContext& ctx, DType type, double tolerance) {
  const auto stored = [&](Values v) {
    for (double& x : v) {
      const auto f = static_cast<float>(x);
      x = type == DType::bf16 ? to_float(to_bf16(f)) : f;
    }
    return v;
  };
  const Values q = stored(random_values("q", a.tokens() * a.heads * a.dim)),
               k = stored(random_values("k", a.tokens() * a.kv_heads * a.dim));
  const Entropies want = oracle(a, q, k);
  const Values got = measure(a, q, k, ctx, type);
  const auto heads = static_cast<std::size_t>(a.heads);
  ASSERT_GE(got.size(), 2 * heads);  // blocks append further values
  for (std::size_t h = 0; h < heads; ++h) {
    EXPECT_EQ(got[heads + h], want.rows[h]) << "rows of head " << h;
    EXPECT_NEAR(got[h] / want.rows[h], want.sums[h] / want.rows[h], tolerance) << "head " << h;
  }
}

// Returns a shape with learned pools, whose weights of values and positions are exact in bf16.
AttentionShape learned_pools(const std::vector<std::int32_t>& offsets) {
  AttentionShape a{offsets, 4, 2, 8, 0.8, pooled(window(4), {3, 16})};
  for (std::int64_t i = 0; i < 2 * (3 + 8 + 16 + 8); ++i)
    a.pooling.push_back(static_cast<double>((i * 7) % 5 - 2) / (i % 2 ? 16 : 8));
  return a;
}

AttentionShape gated_pools(const std::vector<std::int32_t>& offsets) {
  AttentionShape a{offsets, 4, 2, 8, 0.8, pooled(window(4), {3, 16})};
  for (std::int64_t i = 0; i < a.tokens() * a.heads; ++i) a.gates.push_back(static_cast<double>((i * 5) % 13 - 6) / 4);
  return a;
}

std::vector<AttentionShape> shapes() {
  const std::vector<std::int32_t> ragged = offsets_of({5, 1, 70});
  return {{ragged, 2, 2, 8, 0.4, dense()},
          {ragged, 4, 2, 8, 1.5, dense(false)},
          {ragged, 4, 2, 16, 0.3, window(20, 2), {0, 6}},
          {offsets_of({50, 30, 70}), 4, 2, 24, 0.3, dilated({{20, 1}, {40, 2}}, false, 1), {0, 80}},
          {offsets_of({200}), 2, 2, 8, 0.8, block_sparse(64, {{.local = 1, .first = 1}})},
          {ragged, 4, 2, 8, 0.8, pooled(window(4), {3, 16})},
          learned_pools(ragged),
          gated_pools(ragged)};
}

TEST(AttentionEntropy, IsThatOfItsWeights) {
  for (const AttentionShape& a : shapes())
    for (const int threads : {1, 3}) expect_oracle(a, poisoned_context(threads), DType::f32, 2e-5);
}

TEST(AttentionEntropy, OfEqualScoresIsTheLogOfTheirNumber) {
  const AttentionShape a{offsets_of({40}), 2, 1, 8, 0.7, dense()};
  const Values got = measure(a, Values(40 * 16, 0.0), random_values("k", 40 * 8), poisoned_context(2), DType::f32);
  double want = 0;
  for (int n = 1; n <= 40; ++n) want += std::log(n);
  for (const std::size_t h : {0u, 1u}) {
    EXPECT_NEAR(got[h], want, 1e-4);
    EXPECT_EQ(got[2 + h], 40);
  }
}

// Padding of a packed row sees no keys and does not count as a row of the mean.
TEST(AttentionEntropy, DoesNotCountPadding) {
  const AttentionShape a{offsets_of({16}), 1, 1, 8, 1, dense()};
  std::vector<Tensor> entropies;
  const ExecContext ctx = poisoned_context(1);
  ring::Run run{.ctx = ctx, .probes = {.entropies = &entropies}};
  const Var in{make_tensor({16, 24}, DType::f32, Values(16 * 24, 0.0), ctx), nullptr};
  const SelfAttention options{.heads = 1, .kv_heads = 1, .head_dim = 8, .attention = {.pattern = a.pattern}};
  self_attention(run, in, {.offsets = a.offsets, .lengths = {3}}, options);
  const Values got = read_values(entropies.at(0));
  EXPECT_NEAR(got[0], std::log(2) + std::log(3), 1e-6);
  EXPECT_EQ(got[1], 3);
}

class GpuAttentionEntropy : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(GpuAttentionEntropy, IsThatOfItsWeights) {
  const ExecContext ctx = poisoned_device_context({Backend::cuda, 0});
  for (const AttentionShape& a : shapes()) {
    expect_oracle(a, ctx, DType::f32, 1e-4);
    expect_oracle(a, ctx, DType::bf16, 2e-2);
  }
}

}  // namespace
}  // namespace ring::test
