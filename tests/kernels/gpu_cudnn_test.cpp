// cuDNN's attention against its definition in fp64, from the rounded inputs; deterministic results; scores far below
// zero; and calls that it must leave to other kernels.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "core/devices.h"
#include "kernels/attention/attention.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/values.h"

namespace ring::test {
namespace {

struct Case {
  std::int64_t batch, length, heads, kv_heads, dim;
  bool causal;
  double shift = 0;         // added to every score: -120 makes exp(0 - log-sum-exp) overflow
  std::int32_t window = 0;  // 0: none
  std::int64_t tokens() const { return batch * length; }
  std::int64_t width() const { return (heads + 2 * kv_heads) * dim; }  // of the fused q | k | v
  double scale() const { return 1 / std::sqrt(static_cast<double>(dim)); }
  std::vector<Span> spans() const {
    std::vector<std::int32_t> offsets;
    for (std::int64_t b = 0; b <= batch; ++b) offsets.push_back(static_cast<std::int32_t>(b * length));
    return spans_of(offsets);
  }
  Pattern pattern() const { return {.causal = causal, .branches = {{.window = window}}}; }
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.batch << " x " << c.length << " tokens, heads " << c.heads << '/' << c.kv_heads << " of " << c.dim
             << (c.causal ? ", causal" : ", full") << ", shift " << c.shift << ", window " << c.window;
}

std::vector<bf16> random_bf16(std::int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<bf16> all(static_cast<std::size_t>(n));
  for (bf16& x : all) x = to_bf16(normal(random));
  return all;
}

// Returns q | k | v per token. The first element of each head makes the shift: 1 in q, the same number in every key.
std::vector<bf16> make_qkv(const Case& c) {
  std::vector<bf16> all = random_bf16(c.tokens() * c.width(), 1);
  if (c.shift == 0) return all;
  for (std::int64_t n = 0; n < c.tokens(); ++n)
    for (std::int64_t h = 0; h < c.heads + c.kv_heads; ++h)
      all[static_cast<std::size_t>(n * c.width() + h * c.dim)] =
          to_bf16(h < c.heads ? 1.0f : static_cast<float>(c.shift / c.scale()));
  return all;
}

struct FusedReference {
  Values out, lse, dqkv;  // [N,Hq,D], [Hq,N], [N,width]
};

Values widened(const std::vector<bf16>& all) {
  Values out;
  for (bf16 x : all) out.push_back(to_float(x));
  return out;
}

FusedReference reference(const Case& c, const std::vector<bf16>& qkv, const std::vector<bf16>& dout) {
  const std::int64_t q = c.heads * c.dim, k = c.kv_heads * c.dim;
  const Values all = widened(qkv);
  AttentionProblem p{.pattern = c.pattern(), .queries = c.spans(), .keys = c.spans()};
  p.query_rows = p.key_rows = c.tokens();
  p.heads = c.heads, p.kv_heads = c.kv_heads, p.dim = c.dim;
  const AttentionResults r = reference(p, {columns_of(all, c.width(), 0, q), columns_of(all, c.width(), q, q + k),
                                           columns_of(all, c.width(), q + k, c.width()), widened(dout)});
  FusedReference fused{r.out, r.lse, {}};
  for (std::int64_t n = 0; n < c.tokens(); ++n)
    for (const auto& [part, width] : {std::pair{&r.dq, q}, {&r.dk, k}, {&r.dv, k}})
      fused.dqkv.insert(fused.dqkv.end(), part->begin() + n * width, part->begin() + (n + 1) * width);
  return fused;
}

Tensor bf16_tensor(const std::vector<bf16>& values, const Shape& shape, const ExecContext& ctx) {
  return from_host(values, ctx.stream).view(shape);
}
Tensor nan_tensor(const Shape& shape, const ExecContext& ctx) {
  return bf16_tensor(std::vector<bf16>(static_cast<std::size_t>(shape.numel()), bf16{0x7fc0}), shape, ctx);
}

const Kernel<Attention>::Candidate* forward_candidate() {
  for (const auto& c : attention_kernel.candidates(Backend::cuda))
    if (c.name == "cudnn") return &c;
  return nullptr;
}
const Kernel<AttentionBackward>::Candidate* backward_candidate() {
  for (const auto& c : attention_backward_kernel.candidates(Backend::cuda))
    if (c.name == "cudnn") return &c;
  return nullptr;
}

bool usable_cudnn() {
  for (const LibraryFacts& library : inspect_backend(Backend::cuda).libraries)
    if (library.name == "cuDNN") return library.found && library.version >= Version{9, 13, 0};
  return false;
}

// The tensors of one call, as views of the fused matrices.
struct CudnnCall {
  Case c;
  ExecContext ctx;
  std::vector<bf16> host_qkv, host_dout;
  Tensor qkv, dqkv, dout, out, lse;

  CudnnCall(const Case& shape, const ExecContext& context) : c(shape), ctx(context) {
    host_qkv = make_qkv(c);
    host_dout = random_bf16(c.tokens() * c.heads * c.dim, 2);
    qkv = bf16_tensor(host_qkv, {c.tokens(), c.width()}, ctx);
    dqkv = nan_tensor({c.tokens(), c.width()}, ctx);
    dout = bf16_tensor(host_dout, {c.tokens(), c.heads, c.dim}, ctx);
    out = nan_tensor({c.tokens(), c.heads, c.dim}, ctx);
    lse = from_host(std::vector<float>(static_cast<std::size_t>(c.heads * c.tokens()), std::nanf("")), ctx.stream)
              .view({c.heads, c.tokens()});
  }
  Tensor q_of(const Tensor& fused) const { return fused.narrow(1, 0, c.heads * c.dim).split_dim(1, c.dim); }
  Tensor k_of(const Tensor& fused) const {
    return fused.narrow(1, c.heads * c.dim, c.kv_heads * c.dim).split_dim(1, c.dim);
  }
  Tensor v_of(const Tensor& fused) const {
    return fused.narrow(1, (c.heads + c.kv_heads) * c.dim, c.kv_heads * c.dim).split_dim(1, c.dim);
  }
  Attention forward() const {
    return {q_of(qkv),   k_of(qkv), v_of(qkv), out, lse, c.spans(), c.spans(), static_cast<float>(c.scale()),
            c.pattern(), {}};
  }
  AttentionBackward backward() const {
    return {q_of(qkv),   k_of(qkv),  v_of(qkv),  out,       lse,       dout,
            q_of(dqkv),  k_of(dqkv), v_of(dqkv), c.spans(), c.spans(), static_cast<float>(c.scale()),
            c.pattern(), {},         {},         {}};
  }
  Values values(const Tensor& t) const { return widened(to_host<bf16>(t, ctx.stream)); }
};

class GpuCudnn : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
    if (!forward_candidate()) GTEST_SKIP() << "built without cuDNN";
    if (!usable_cudnn()) GTEST_SKIP() << "no usable cuDNN here";
  }
  static ExecContext context(bool deterministic) {
    ExecContext ctx{Stream::create({Backend::cuda, 0})};
    ctx.precision = Precision::bf16;
    ctx.deterministic = deterministic;
    return ctx;
  }

  // Returns true if a row of bf16 scores fits into the f32 sums of a row of dq, with a turn counter for each 64
  // columns, and the row's two statistics.
  static bool scores_fit(const Case& c) {
    const std::int64_t parts = (c.dim + 63) / 64;
    return 2 * c.length <= 4 * (65 * parts + 2);
  }

  static void check(const Case& c, bool deterministic) {
    SCOPED_TRACE(str(c, deterministic ? ", deterministic" : ""));
    const CudnnCall call(c, context(deterministic));
    ASSERT_TRUE(forward_candidate()->supports(call.forward(), call.ctx));
    const bool backward = !deterministic || scores_fit(c);
    ASSERT_EQ(backward_candidate()->supports(call.backward(), call.ctx), backward);
    forward_candidate()->fn(call.forward(), call.ctx);
    if (backward) backward_candidate()->fn(call.backward(), call.ctx);
    const FusedReference want = reference(c, call.host_qkv, call.host_dout);
    EXPECT_LT(relative_error(call.values(call.out), want.out), 5e-3);
    const std::vector<float> lse = to_host<float>(call.lse.view({call.lse.numel()}), call.ctx.stream);
    EXPECT_LT(relative_error(Values(lse.begin(), lse.end()), want.lse), 1e-4);
    if (!backward) return;
    const Values got = call.values(call.dqkv);
    const std::int64_t parts[] = {0, c.heads * c.dim, (c.heads + c.kv_heads) * c.dim, c.width()};
    for (int i = 0; i < 3; ++i)
      EXPECT_LT(part_error(c, got, want.dqkv, parts[i], parts[i + 1]), 1e-2) << "dq, dk, dv: " << i;
  }
  // Returns the error in the columns [from, to): small gradients must not hide behind large ones.
  static double part_error(const Case& c, const Values& got, const Values& want, std::int64_t from, std::int64_t to) {
    Values a, b;
    for (std::int64_t n = 0; n < c.tokens(); ++n)
      for (std::int64_t i = n * c.width() + from; i < n * c.width() + to; ++i) {
        // With a shift these are sums of large terms that cancel: only rounding errors remain.
        if (c.shift != 0 && from == 0 && (i - n * c.width()) % c.dim == 0) {
          EXPECT_TRUE(std::isfinite(got[static_cast<std::size_t>(i)]));
          continue;
        }
        a.push_back(got[static_cast<std::size_t>(i)]);
        b.push_back(want[static_cast<std::size_t>(i)]);
      }
    return relative_error(a, b);
  }
};

TEST_F(GpuCudnn, MatchesTheDefinition) {
  for (bool deterministic : {true, false})
    for (bool causal : {true, false})
      for (std::int64_t dim : {64, 128})
        for (std::int64_t kv_heads : {4, 2, 1}) {
          check({3, 128, 4, kv_heads, dim, causal}, deterministic);
          check({1, 384, 4, kv_heads, dim, causal}, deterministic);
        }
}

TEST_F(GpuCudnn, MatchesTheDefinitionOnLongerSequences) {
  for (bool deterministic : {true, false}) {
    check({2, 1024, 4, 4, 64, true}, deterministic);
    check({2, 1024, 2, 1, 128, false}, deterministic);
  }
}

TEST_F(GpuCudnn, Windows) {
  for (bool deterministic : {true, false})
    for (std::int64_t dim : {64, 128})
      for (std::int32_t window : {100, 128, 129, 383, 384, 1000})
        check({.batch = 2, .length = 384, .heads = 4, .kv_heads = 2, .dim = dim, .causal = true, .window = window},
              deterministic);
}

TEST_F(GpuCudnn, OddHeadWidths) {
  for (std::int64_t dim : {8, 24, 40, 80, 96}) {
    const CudnnCall call({2, 256, 2, 1, dim, true}, context(false));
    if (forward_candidate()->supports(call.forward(), call.ctx) &&
        backward_candidate()->supports(call.backward(), call.ctx))
      check(call.c, false);
  }
}

TEST_F(GpuCudnn, WideHeads) {
  for (std::int64_t dim : {192, 256}) {
    const CudnnCall call({2, 256, 2, 1, dim, true}, context(false));
    if (forward_candidate()->supports(call.forward(), call.ctx) &&
        backward_candidate()->supports(call.backward(), call.ctx))
      check(call.c, false);
  }
}

TEST_F(GpuCudnn, ScoresFarBelowZero) {
  for (bool deterministic : {true, false})
    for (bool causal : {true, false})
      for (std::int64_t length : {128, 256, 640})
        for (std::int64_t dim : {64, 128}) check({2, length, 2, 2, dim, causal, -120}, deterministic);
}

// In the forward, cuDNN also handles the partial last tile.
TEST_F(GpuCudnn, ForwardOfAnyLength) {
  for (bool causal : {true, false})
    for (std::int64_t length : {64, 65, 127, 200, 1000}) {
      const Case c{2, length, 4, 2, 64, causal};
      SCOPED_TRACE(str(c));
      const CudnnCall call(c, context(true));
      ASSERT_TRUE(forward_candidate()->supports(call.forward(), call.ctx));
      EXPECT_FALSE(backward_candidate()->supports(call.backward(), call.ctx));
      forward_candidate()->fn(call.forward(), call.ctx);
      const FusedReference want = reference(c, call.host_qkv, call.host_dout);
      EXPECT_LT(relative_error(call.values(call.out), want.out), 5e-3);
      const std::vector<float> lse = to_host<float>(call.lse.view({call.lse.numel()}), call.ctx.stream);
      EXPECT_LT(relative_error(Values(lse.begin(), lse.end()), want.lse), 1e-4);
    }
}

// Parts as in a ring: the first half of queries and keys, then the second half of the queries over the first half of
// the keys, then over their own half, each merged into the previous result.
TEST_F(GpuCudnn, PartsOfARing) {
  for (std::int64_t dim : {64, 128, 256})
    for (std::int64_t kv_heads : {4, 2}) {
      const Case c{2, 512, 4, kv_heads, dim, true};
      SCOPED_TRACE(str(c));
      const CudnnCall call(c, context(false));
      const auto half = [&](int which) {
        std::vector<Span> spans = c.spans();
        for (Span& s : spans) {
          s.count /= 2;
          s.first += which * s.count;
          s.position += which * s.count;
        }
        return spans;
      };
      const std::pair<int, int> parts[] = {{0, 0}, {1, 0}, {1, 1}};
      const Tensor carry = call.ctx.empty({c.tokens(), c.heads, c.dim});
      for (int i = 0; i < 3; ++i) {
        Attention a = call.forward();
        a.queries = half(parts[i].first);
        a.keys = half(parts[i].second);
        if (i > 0) a.carry = carry;
        a.out = i < 2 ? carry : call.out;
        if (i == 0 && !forward_candidate()->supports(a, call.ctx)) GTEST_SKIP() << "no plan for heads of " << dim;
        ASSERT_TRUE(forward_candidate()->supports(a, call.ctx)) << i;
        forward_candidate()->fn(a, call.ctx);
      }
      const Tensor dq = call.ctx.zeros({c.tokens(), c.heads, c.dim}),
                   dk = call.ctx.zeros({c.tokens(), kv_heads, c.dim}),
                   dv = call.ctx.zeros({c.tokens(), kv_heads, c.dim});
      for (int i = 0; i < 3; ++i) {
        AttentionBackward a = call.backward();
        a.queries = half(parts[i].first);
        a.keys = half(parts[i].second);
        a.carry_dq = dq, a.carry_dk = dk, a.carry_dv = dv;
        if (i < 2) a.dq = dq, a.dk = dk, a.dv = dv;
        ASSERT_TRUE(backward_candidate()->supports(a, call.ctx)) << i;
        backward_candidate()->fn(a, call.ctx);
      }
      const FusedReference want = reference(c, call.host_qkv, call.host_dout);
      EXPECT_LT(relative_error(call.values(call.out), want.out), 5e-3);
      const std::vector<float> lse = to_host<float>(call.lse.view({call.lse.numel()}), call.ctx.stream);
      EXPECT_LT(relative_error(Values(lse.begin(), lse.end()), want.lse), 1e-4);
      const Values got = call.values(call.dqkv);
      const std::int64_t columns[] = {0, c.heads * c.dim, (c.heads + c.kv_heads) * c.dim, c.width()};
      for (int i = 0; i < 3; ++i)
        EXPECT_LT(part_error(c, got, want.dqkv, columns[i], columns[i + 1]), 1e-2) << "dq, dk, dv: " << i;
    }
}

TEST_F(GpuCudnn, SameBitsTwiceWhenAskedFor) {
  for (std::int64_t kv_heads : {8, 2}) {
    const CudnnCall call({8, 128, 8, kv_heads, 64, true}, context(true));  // longer sequences save too many scores
    ASSERT_TRUE(backward_candidate()->supports(call.backward(), call.ctx));
    forward_candidate()->fn(call.forward(), call.ctx);
    std::vector<bf16> out, gradients;
    for (int i = 0; i < 4; ++i) {
      forward_candidate()->fn(call.forward(), call.ctx);
      backward_candidate()->fn(call.backward(), call.ctx);
      const std::vector<bf16> o = to_host<bf16>(call.out, call.ctx.stream),
                              g = to_host<bf16>(call.dqkv, call.ctx.stream);
      if (i > 0) {
        EXPECT_EQ(std::memcmp(o.data(), out.data(), o.size() * sizeof(bf16)), 0) << "heads " << kv_heads;
        EXPECT_EQ(std::memcmp(g.data(), gradients.data(), g.size() * sizeof(bf16)), 0) << "heads " << kv_heads;
      }
      out = o;
      gradients = g;
    }
  }
}

TEST_F(GpuCudnn, AFutureTokenChangesNothingBeforeIt) {
  const Case c{2, 256, 4, 2, 64, true};
  const CudnnCall call(c, context(true));
  forward_candidate()->fn(call.forward(), call.ctx);
  const std::vector<bf16> before = to_host<bf16>(call.out, call.ctx.stream);
  constexpr std::int64_t kChanged = 100;  // in the first sequence
  std::vector<bf16> changed = call.host_qkv;
  for (std::int64_t i = 0; i < c.width(); ++i) changed[static_cast<std::size_t>(kChanged * c.width() + i)] = to_bf16(3);
  Attention args = call.forward();
  const Tensor qkv = bf16_tensor(changed, {c.tokens(), c.width()}, call.ctx);
  args.q = call.q_of(qkv), args.k = call.k_of(qkv), args.v = call.v_of(qkv);
  forward_candidate()->fn(args, call.ctx);
  const std::vector<bf16> after = to_host<bf16>(call.out, call.ctx.stream);
  const auto row = static_cast<std::size_t>(c.heads * c.dim);
  EXPECT_EQ(std::memcmp(before.data(), after.data(), kChanged * row * sizeof(bf16)), 0);
  EXPECT_NE(std::memcmp(before.data() + kChanged * row, after.data() + kChanged * row, row * sizeof(bf16)), 0);
  const std::size_t second = static_cast<std::size_t>(c.length) * row;
  EXPECT_EQ(std::memcmp(before.data() + second, after.data() + second, second * sizeof(bf16)), 0);
}

TEST_F(GpuCudnn, LeavesTheRestToOthers) {
  const CudnnCall call({2, 256, 4, 2, 64, true}, context(false));
  const auto forward = [&](Attention a) { return forward_candidate()->supports(a, call.ctx); };
  const auto backward = [&](AttentionBackward a) { return backward_candidate()->supports(a, call.ctx); };
  ASSERT_TRUE(forward(call.forward()));
  ASSERT_TRUE(backward(call.backward()));
  for (const std::vector<std::int32_t>& offsets : {std::vector<std::int32_t>{0, 200, 512}, {0}, {}}) {
    Attention a = call.forward();
    AttentionBackward b = call.backward();
    a.queries = a.keys = b.queries = b.keys = spans_of(offsets);
    EXPECT_FALSE(forward(a));
    EXPECT_FALSE(backward(b));
  }
  const auto refuses = [&](const auto& change) {
    Attention a = call.forward();
    AttentionBackward b = call.backward();
    change(a), change(b);
    EXPECT_FALSE(forward(a));
    EXPECT_FALSE(backward(b));
  };
  refuses([](auto& a) { a.keys = spans_of({0, 256, 512}, {0}); });  // parts of documents
  refuses([](auto& a) { std::swap(a.keys[0], a.keys[1]), std::swap(a.queries[0], a.queries[1]); });
  refuses([](auto& a) { a.queries[0].position = 7; });  // the causal edge is not the diagonal
  refuses([](auto& a) { a.pattern = {.branches = {{64, 1}}}; });
  refuses([](auto& a) { a.pattern = {.branches = {{.window = 64}}, .sinks = 1}; });
  refuses([](auto& a) { a.pattern = {.causal = false, .branches = {{.window = 64}}}; });
  Attention part = call.forward();  // only some rows: lengths must be from a small set
  part.queries = part.keys = spans_of({0, 192});
  EXPECT_TRUE(forward(part));
  part.queries = part.keys = spans_of({0, 200});
  EXPECT_FALSE(forward(part));
  Attention misaligned = call.forward();  // 4 elements are 8 bytes
  misaligned.q = nan_tensor({512, 4 * 64 + 4}, call.ctx).narrow(1, 4, 256).split_dim(1, 64);
  EXPECT_FALSE(forward(misaligned));
  AttentionBackward no_gradient = call.backward();
  no_gradient.dk = {};
  EXPECT_FALSE(backward(no_gradient));
  EXPECT_FALSE(forward(CudnnCall({512, 1, 4, 2, 64, true}, call.ctx).forward()));
}

// cuDNN's deterministic backward needs memory that grows with the square of the length.
TEST_F(GpuCudnn, DeterministicBackwardOfLongSequencesIsLeftToOthers) {
  const Case c{1, 1024, 4, 1, 64, true};
  CudnnCall call(c, context(true));
  EXPECT_FALSE(backward_candidate()->supports(call.backward(), call.ctx));
  call.ctx.deterministic = false;
  EXPECT_TRUE(backward_candidate()->supports(call.backward(), call.ctx));
}

}  // namespace
}  // namespace ring::test
