// Our own CUDA attention, candidate by candidate, against fp64 from the inputs as rounded to their type: heads of many
// widths, groups, ragged sequences, views of a fused product, the properties that masks must have.

#include <cmath>
#include <cstring>

#include "kernels/attention/attention.h"
#include "tests/kernels/op_case_checks.h"
#include "tests/kernels/poison_allocator.h"

namespace ring::test {
namespace {

struct Problem {
  std::vector<std::int32_t> offsets;
  std::int64_t heads, kv_heads, dim;
  bool causal = true;
  DType dtype = DType::bf16;
  bool fused = true;       // q, k, v in one [N,C] tensor, and their gradients in another
  std::int64_t after = 0;  // tokens after the last sequence
  double size = 1;         // of q and k
  std::int64_t shift = 0;  // columns before q in the fused tensor
  std::int64_t tokens() const { return offsets.back() + after; }
  double scale() const { return static_cast<float>(1 / std::sqrt(static_cast<double>(dim))); }
};

std::string text(const Problem& p) {
  std::string lengths;
  for (std::size_t b = 1; b < p.offsets.size(); ++b) lengths += str(b > 1 ? "," : "", p.offsets[b] - p.offsets[b - 1]);
  return str("lengths ", lengths, ", heads ", p.heads, "/", p.kv_heads, ", D ", p.dim,
             p.causal ? ", causal, " : ", full, ", p.dtype, p.fused ? ", fused" : "");
}

std::vector<std::int32_t> lengths(const std::vector<std::int32_t>& all, std::int32_t first = 0) {
  std::vector<std::int32_t> offsets = {first};
  for (std::int32_t n : all) offsets.push_back(offsets.back() + n);
  return offsets;
}

Values rounded(Values v, DType type) {
  for (double& x : v) {
    const auto f = static_cast<float>(x);
    x = type == DType::bf16 ? to_float(to_bf16(f)) : f;
  }
  return v;
}

Tensor upload(const Values& v, const Shape& shape, DType type, const Context& ctx) {
  std::vector<float> wide(v.begin(), v.end());
  if (type == DType::f32) return from_host(wide, ctx.stream).view(shape);
  std::vector<bf16> narrow;
  for (float x : wide) narrow.push_back(to_bf16(x));
  return from_host(narrow, ctx.stream).view(shape);
}

Values download(const Tensor& t, const Context& ctx) {
  if (t.dtype() == DType::f32) {
    const std::vector<float> host = to_host<float>(t, ctx.stream);
    return {host.begin(), host.end()};
  }
  Values v;
  for (bf16 x : to_host<bf16>(t, ctx.stream)) v.push_back(to_float(x));
  return v;
}

// q, k and v, or their gradients: three tensors, or columns of one.
struct Operands {
  std::int64_t tokens, shift, q_width, k_width;
  Tensor all, parts[3];
  Operands(const Problem& p, const Context& ctx) : tokens(p.tokens()), shift(p.shift) {
    q_width = p.heads * p.dim, k_width = p.kv_heads * p.dim;
    if (p.fused) all = ctx.empty({tokens, shift + q_width + 2 * k_width}, p.dtype);
    for (int i = 0; i < 3; ++i)
      parts[i] =
          (p.fused ? all.narrow(1, first(i), width(i)) : ctx.empty({tokens, width(i)}, p.dtype)).split_dim(1, p.dim);
  }
  std::int64_t width(int i) const { return i == 0 ? q_width : k_width; }
  std::int64_t first(int i) const { return i == 0 ? shift : shift + q_width + (i - 1) * k_width; }

  void write(const Values (&v)[3], const Context& ctx) {
    if (!all.defined()) {
      for (int i = 0; i < 3; ++i) copy(parts[i], upload(v[i], parts[i].shape(), parts[i].dtype(), ctx), ctx.stream);
      return;
    }
    Values wide(static_cast<std::size_t>(all.numel()), 7.0);
    for (int i = 0; i < 3; ++i)
      for (std::int64_t n = 0; n < tokens; ++n)
        std::copy_n(v[i].begin() + n * width(i), width(i), wide.begin() + n * all.dim(1) + first(i));
    copy(all, upload(wide, all.shape(), all.dtype(), ctx), ctx.stream);
  }
  Values read(int i, const Context& ctx) const {
    if (!all.defined()) return download(parts[i], ctx);
    const Values wide = download(all, ctx);
    Values v;
    for (std::int64_t n = 0; n < tokens; ++n) {
      const auto from = wide.begin() + n * all.dim(1) + first(i);
      v.insert(v.end(), from, from + width(i));
    }
    return v;
  }
};

struct Inputs {
  Values qkv[3], dout;
  explicit Inputs(const Problem& p) {
    const std::int64_t n = p.tokens();
    qkv[0] = rounded(random_values("q", n * p.heads * p.dim, p.size), p.dtype);
    qkv[1] = rounded(random_values("k", n * p.kv_heads * p.dim, p.size), p.dtype);
    qkv[2] = rounded(random_values("v", n * p.kv_heads * p.dim), p.dtype);
    dout = rounded(random_values("dout", n * p.heads * p.dim), p.dtype);
  }
};

struct Results {
  Values out, lse, d[3];
  bool operator==(const Results& o) const {
    return out == o.out && lse == o.lse && d[0] == o.d[0] && d[1] == o.d[1] && d[2] == o.d[2];
  }
};

// One query row in fp64: out and lse, and with `d` what it adds to the gradients.
struct Row {
  const Problem& p;
  const Inputs& in;
  Results& to;

  void run(std::int64_t t, std::int64_t h, std::int64_t first, std::int64_t end) {
    const std::int64_t dim = p.dim, kv = h * p.kv_heads / p.heads, at = (t * p.heads + h) * dim;
    const auto key = [&](std::int64_t u) { return (u * p.kv_heads + kv) * dim; };
    const double *q = &in.qkv[0][at], *dout = &in.dout[at], *k = in.qkv[1].data(), *v = in.qkv[2].data();
    double *out = &to.out[at], *dq = &to.d[0][at];
    Values w;
    double largest = -INFINITY, total = 0, delta = 0;
    for (std::int64_t u = first; u < end; ++u) {
      w.push_back(p.scale() * dot(q, k + key(u)));
      largest = std::max(largest, w.back());
    }
    for (double& x : w) total += x = std::exp(x - largest);
    for (std::int64_t u = first; u < end; ++u)
      for (std::int64_t i = 0; i < dim; ++i) out[i] += w[u - first] / total * v[key(u) + i];
    to.lse[h * p.tokens() + t] = largest + std::log(total);
    delta = dot(out, dout);
    for (std::int64_t u = first; u < end; ++u) {
      const double weight = w[u - first] / total, ds = p.scale() * weight * (dot(dout, v + key(u)) - delta);
      for (std::int64_t i = 0; i < dim; ++i) {
        dq[i] += ds * k[key(u) + i];
        to.d[1][key(u) + i] += ds * q[i];
        to.d[2][key(u) + i] += weight * dout[i];
      }
    }
  }
  double dot(const double* a, const double* b) const {
    double sum = 0;
    for (std::int64_t i = 0; i < p.dim; ++i) sum += a[i] * b[i];
    return sum;
  }
};

Results reference(const Problem& p, const Inputs& in) {
  Results r{Values(in.qkv[0].size()), Values(static_cast<std::size_t>(p.heads * p.tokens()), -INFINITY), {}};
  for (int i = 0; i < 3; ++i) r.d[i].assign(in.qkv[i].size(), 0.0);
  Row row{p, in, r};
  for (std::size_t b = 0; b + 1 < p.offsets.size(); ++b)
    for (std::int64_t t = p.offsets[b]; t < p.offsets[b + 1]; ++t)
      for (std::int64_t h = 0; h < p.heads; ++h) row.run(t, h, p.offsets[b], p.causal ? t + 1 : p.offsets[b + 1]);
  return r;
}

template <class Args>
const typename Kernel<Args>::Candidate& candidate(const Kernel<Args>& kernel, const std::string& name) {
  for (const auto& c : kernel.candidates(Backend::cuda))
    if (c.name == name) return c;
  fail("no candidate ", name);
}

template <class Args>
void run_candidate(const Kernel<Args>& kernel, const std::string& name, const Args& args, const Context& ctx) {
  const auto& c = candidate(kernel, name);
  ASSERT_TRUE(!c.supports || c.supports(args, ctx)) << name;
  c.fn(args, ctx);
}

Results run(const std::string& name, const Problem& p, const Inputs& in) {
  const Context ctx = poisoned_device_context({Backend::cuda, 0});
  Operands qkv(p, ctx), gradients(p, ctx);
  qkv.write(in.qkv, ctx);
  const Shape shape{p.tokens(), p.heads, p.dim};
  const Tensor dout = upload(in.dout, shape, p.dtype, ctx), out = ctx.empty(shape, p.dtype);
  const Tensor lse = ctx.empty({p.heads, p.tokens()});
  const auto scale = static_cast<float>(p.scale());
  run_candidate(attention_kernel, name,
                {qkv.parts[0], qkv.parts[1], qkv.parts[2], out, lse, p.offsets, scale, p.causal}, ctx);
  run_candidate(attention_backward_kernel, name,
                {qkv.parts[0], qkv.parts[1], qkv.parts[2], out, lse, dout, gradients.parts[0], gradients.parts[1],
                 gradients.parts[2], p.offsets, scale, p.causal},
                ctx);
  Results r{download(out, ctx), download(lse, ctx), {}};
  for (int i = 0; i < 3; ++i) r.d[i] = gradients.read(i, ctx);
  return r;
}

double norm(const Values& v) {
  double sum = 0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}
double distance(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

// Conditions are written so that NaN fails them. Gradients of q and k are differences that cancel (wholly, where a
// query sees one key): their bound is relative to dv as well.
void expect_close(const Problem& p, const Results& got, const Results& want) {
  const bool narrow = p.dtype == DType::bf16;
  const double tolerance = narrow ? 5e-3 : 1e-5, gradient_tolerance = narrow ? 1e-2 : 1e-5;
  EXPECT_LE(distance(got.out, want.out), tolerance * norm(want.out)) << "out";
  for (std::size_t i = 0; i < want.lse.size(); ++i) {
    if (std::isinf(want.lse[i]))
      ASSERT_EQ(got.lse[i], want.lse[i]) << i;
    else
      ASSERT_LE(std::abs(got.lse[i] - want.lse[i]), 1e-5 * (1 + std::abs(want.lse[i]))) << "lse " << i;
  }
  const double floor = 0.1 * norm(want.d[2]);
  for (int i = 0; i < 3; ++i)
    EXPECT_LE(distance(got.d[i], want.d[i]), gradient_tolerance * (norm(want.d[i]) + (i < 2 ? floor : 0)))
        << "gradient of "
        << "qkv"[i];
}

void expect_right(const std::string& name, const Problem& p) {
  SCOPED_TRACE(name + ": " + text(p));
  const Inputs in(p);
  expect_close(p, run(name, p, in), reference(p, in));
}

class GpuAttention : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }
};

const std::vector<std::int64_t> kDims = {8, 24, 40, 64, 72, 80, 96, 128, 160, 256};

// Every width with every kernel, lengths on both sides of each block.
TEST_F(GpuAttention, MmaAtEveryWidth) {
  for (std::int64_t dim : kDims)
    for (bool causal : {true, false}) expect_right("own_mma", {lengths({1, 65, 130}), 2, 1, dim, causal});
}
TEST_F(GpuAttention, SimtAtEveryWidth) {
  for (std::int64_t dim : kDims)
    for (bool causal : {true, false})
      for (DType type : {DType::f32, DType::bf16})
        expect_right("own_simt", {lengths({1, 65, 130}), 2, 1, dim, causal, type});
}

TEST_F(GpuAttention, MmaAtEveryLength) {
  for (std::int32_t length : {1, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 192, 300})
    for (std::int64_t dim : {64, 128})
      for (bool causal : {true, false}) {
        expect_right("own_mma", {lengths({length}), 1, 1, dim, causal});
        expect_right("own_mma", {lengths({length, length, length}), 2, 2, dim, causal, DType::bf16, false});
      }
}
TEST_F(GpuAttention, SimtAtEveryLength) {
  for (std::int32_t length : {1, 7, 63, 64, 65, 127, 128, 129, 300})
    for (bool causal : {true, false}) expect_right("own_simt", {lengths({length}), 1, 1, 64, causal, DType::f32});
}

TEST_F(GpuAttention, LongRows) {
  for (std::int64_t dim : {64, 96, 128, 256})
    for (bool causal : {true, false}) expect_right("own_mma", {lengths({1000}), 2, 1, dim, causal});
  expect_right("own_simt", {lengths({1000}), 2, 1, 64, true, DType::f32});
  expect_right("own_simt", {lengths({1000}), 1, 1, 256, false, DType::f32});
}

TEST_F(GpuAttention, Groups) {
  for (std::int64_t group : {1, 2, 4, 8})
    for (std::int64_t dim : {64, 128}) {
      expect_right("own_mma", {lengths({150, 150}), 2 * group, 2, dim});
      expect_right("own_mma", {lengths({200, 33}), group, 1, dim, false});
      expect_right("own_simt", {lengths({90, 33}), 2 * group, 2, dim, true, DType::f32});
    }
}

// Some sequences are empty, some tokens belong to none: those get 0 everywhere, and -inf as their log-sum-exp.
TEST_F(GpuAttention, RaggedSequencesAndRowsOfNone) {
  Problem p{lengths({40, 0, 1, 200, 0, 64}, 5), 4, 2, 64};
  p.after = 9;
  for (bool fused : {true, false})
    for (bool causal : {true, false}) {
      p.fused = fused, p.causal = causal;
      p.dtype = DType::bf16;
      expect_right("own_mma", p);
      expect_right("own_simt", p);
      p.dtype = DType::f32;
      expect_right("own_simt", p);
    }
  p = {{3, 131, 259}, 2, 2, 128};  // of one length, but not from the first token
  p.after = 300;
  expect_right("own_mma", p);
  p = {{0, 0, 0}, 2, 1, 64};  // no sequence at all
  p.after = 70;
  expect_right("own_mma", p);
  expect_right("own_simt", p);
}

TEST_F(GpuAttention, NothingToDo) {
  for (const char* name : {"own_mma", "own_simt"}) expect_right(name, {{0}, 2, 1, 64});
}

// More pairs of sequence and head than share the cache: they are done in sections, the last one smaller.
TEST_F(GpuAttention, ManyShortSequences) {
  const std::vector<std::int32_t> even(37, 48);
  std::vector<std::int32_t> odd(37, 48);
  odd[11] = 20;
  for (const auto& all : {even, odd})
    for (bool causal : {true, false}) {
      expect_right("own_mma", {lengths(all), 6, 2, 64, causal});
      expect_right("own_simt", {lengths(all), 3, 3, 40, causal, DType::f32});
    }
}

TEST_F(GpuAttention, RowsThatAreNotAlignedGoToThePlainKernel) {
  const Context ctx = poisoned_device_context({Backend::cuda, 0});
  Problem p{lengths({100}), 2, 1, 64};
  p.shift = 4;
  const Operands qkv(p, ctx);
  const Tensor out = ctx.empty({100, 2, 64}, DType::bf16), lse = ctx.empty({2, 100});
  const Attention args{qkv.parts[0], qkv.parts[1], qkv.parts[2], out, lse, p.offsets, 1, true};
  EXPECT_FALSE(candidate(attention_kernel, "own_mma").supports(args, ctx));
  expect_right("own_simt", p);
  p.dtype = DType::f32;
  p.shift = 3;
  expect_right("own_simt", p);
}

TEST_F(GpuAttention, TwoRunsHaveTheSameBits) {
  for (const Problem& p : {Problem{lengths({700, 300, 65}), 8, 2, 64}, Problem{lengths({513, 513}), 4, 4, 128, false},
                           Problem{lengths({300}), 2, 1, 256}}) {
    const Inputs in(p);
    const Results first = run("own_mma", p, in);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(run("own_mma", p, in) == first) << text(p);
    EXPECT_TRUE(run("own_simt", p, in) == run("own_simt", p, in)) << text(p);
  }
}

// Token t changes; no output of an earlier row may, by a single bit.
TEST_F(GpuAttention, TheFutureDoesNotLeak) {
  for (const char* name : {"own_mma", "own_simt"})
    for (std::int64_t dim : {64, 128, 256})
      for (std::int64_t t : {1, 63, 64, 127, 150, 255, 299}) {
        const Problem p{lengths({300}), 2, 1, dim};
        Inputs in(p);
        const Results before = run(name, p, in);
        for (Values& v : in.qkv) {
          const auto row = static_cast<std::int64_t>(v.size()) / 300;
          for (std::int64_t i = t * row; i < (t + 1) * row; ++i) v[static_cast<std::size_t>(i)] = i % 2 ? 3 : -2;
        }
        const Results after = run(name, p, in);
        const auto same = static_cast<std::ptrdiff_t>(t * p.heads * dim);
        EXPECT_TRUE(std::equal(before.out.begin(), before.out.begin() + same, after.out.begin())) << name << t;
        EXPECT_FALSE(before.out == after.out);
        for (std::int64_t h = 0; h < p.heads; ++h)
          EXPECT_TRUE(
              std::equal(before.lse.begin() + h * 300, before.lse.begin() + h * 300 + t, after.lse.begin() + h * 300));
      }
}

// Scores of up to 1e9: weights are 0 or 1 nearly everywhere, and nothing overflows on the way.
TEST_F(GpuAttention, HugeScoresGiveNoNaN) {
  for (const char* name : {"own_mma", "own_simt"})
    for (std::int64_t dim : {64, 128})
      for (bool causal : {true, false}) {
        Problem p{lengths({200, 70}), 2, 1, dim, causal};
        p.size = 1e4;
        const Inputs in(p);
        const Results got = run(name, p, in), want = reference(p, in);
        EXPECT_LE(distance(got.out, want.out), 1e-2 * norm(want.out)) << name;
        for (const Values& v : {got.lse, got.d[0], got.d[1], got.d[2]})
          for (double x : v) ASSERT_TRUE(std::isfinite(x)) << name;
      }
}

TEST_F(GpuAttention, DecodesOneQueryPerSequence) {
  const std::vector<std::int32_t> valid = {0, 1, 77, 300};
  const std::int64_t sequences = 4, capacity = 310;
  for (DType type : {DType::f32, DType::bf16})
    for (std::int64_t dim : kDims)
      for (std::int64_t kv_heads : {1, 4}) {
        const Context ctx = poisoned_device_context({Backend::cuda, 0});
        const std::int64_t heads = 4, cache = sequences * capacity * kv_heads * dim;
        const Values q = rounded(random_values("q", sequences * heads * dim, 3), type);
        const Values k = rounded(random_values("k", cache), type), v = rounded(random_values("v", cache), type);
        const Tensor out = ctx.empty({sequences, heads, dim}, type);
        const Shape shape{sequences, capacity, kv_heads, dim};
        run_candidate(attention_decode_kernel, "own_simt",
                      {upload(q, out.shape(), type, ctx), upload(k, shape, type, ctx), upload(v, shape, type, ctx), out,
                       valid, 0.25f},
                      ctx);
        Values want(q.size());
        for (std::int64_t b = 0; b < sequences; ++b)
          for (std::int64_t h = 0; h < heads; ++h) {
            Problem p{{0, valid[static_cast<std::size_t>(b)]}, 1, 1, dim};
            double total = 0, *row = &want[static_cast<std::size_t>((b * heads + h) * dim)];
            for (std::int64_t u = 0; u < p.offsets[1]; ++u) {
              const std::int64_t at = ((b * capacity + u) * kv_heads + h * kv_heads / heads) * dim;
              double score = 0;
              for (std::int64_t i = 0; i < dim; ++i) score += q[(b * heads + h) * dim + i] * k[at + i];
              const double weight = std::exp(0.25 * score);
              total += weight;
              for (std::int64_t i = 0; i < dim; ++i) row[i] += weight * v[at + i];
            }
            for (std::int64_t i = 0; i < dim && total > 0; ++i) row[i] /= total;
          }
        EXPECT_LE(distance(download(out, ctx), want), (type == DType::bf16 ? 5e-3 : 1e-5) * norm(want))
            << dim << " " << type << " " << kv_heads;
      }
}

}  // namespace
}  // namespace ring::test
