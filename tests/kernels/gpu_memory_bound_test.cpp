// Memory-bound CUDA kernels in f32 and bf16, against their definitions in f64, computed from the stored inputs: odd
// lengths, views of any alignment, strided rows, work in place, poisoned outputs.

#include <cmath>
#include <cstring>
#include <numbers>

#include "core/step_state.h"
#include "kernels/activation.h"
#include "kernels/elementwise.h"
#include "kernels/rope.h"
#include "tests/kernels/op_case_checks.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/values.h"

namespace ring::test {
namespace {

// Parameter: the type of the tensors.
class GpuMemoryBound : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }
  static ExecContext exec() { return poisoned_device_context({Backend::cuda, 0}); }
  static Tensor random(const std::string& name, const Shape& shape, const ExecContext& ctx, double scale = 1) {
    return make_tensor(shape, GetParam(), random_values(name, shape.numel(), scale), ctx);
  }
  static double tol() { return tolerance(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(All, GpuMemoryBound, testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return str(info.param); });

template <class F>
Values mapped(const Values& x, const F& f) {
  Values y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = f(i);
  return y;
}

struct Curve {
  double value, slope;
};
Curve curve(Activation kind, double x) {
  const double pi = std::numbers::pi;
  if (kind == Activation::relu2) return {x < 0 ? 0 : x * x, x < 0 ? 0 : 2 * x};
  if (kind == Activation::gelu) {
    const double cdf = 0.5 * std::erfc(-x / std::sqrt(2.0));
    return {x * cdf, cdf + x * std::exp(-0.5 * x * x) / std::sqrt(2 * pi)};
  }
  const double k = 2 * std::sqrt(2 / pi), s = 1 / (1 + std::exp(-k * (x + 0.044715 * x * x * x)));  // (1 + tanh) / 2
  return {x * s, s + x * s * (1 - s) * k * (1 + 3 * 0.044715 * x * x)};
}

const std::int64_t kCounts[] = {0, 1, 7, 8, 31, 4096, 4099, 100003, 1000000};

TEST_P(GpuMemoryBound, Activations) {
  for (Activation kind : {Activation::gelu, Activation::gelu_tanh, Activation::relu2})
    for (std::int64_t n : kCounts)
      for (std::int64_t offset : {0, 1}) {
        SCOPED_TRACE(str("kind ", static_cast<int>(kind), ", ", n, " elements from ", offset));
        const ExecContext ctx = exec();
        const Tensor x_whole = random("x", {n + offset}, ctx, 4), dy = random("dy", {n}, ctx);
        const Tensor x = x_whole.narrow(0, offset, n), y = ctx.empty({n}, GetParam());
        Values in = read_values(x_whole, ctx);
        in.erase(in.begin(), in.begin() + offset);
        const Values d = read_values(dy, ctx);
        activate_kernel({.x = x, .y = y, .kind = kind}, ctx);
        activate_backward_kernel({.x = x, .dy = dy, .dx = dy, .kind = kind}, ctx);
        EXPECT_TRUE(close(read_values(y, ctx), mapped(in, [&](auto i) { return curve(kind, in[i]).value; }), tol()));
        EXPECT_TRUE(
            close(read_values(dy, ctx), mapped(in, [&](auto i) { return d[i] * curve(kind, in[i]).slope; }), tol()));
      }
}

TEST_P(GpuMemoryBound, ActivationsOfExtremes) {
  const double inf = INFINITY;
  for (Activation kind : {Activation::gelu, Activation::gelu_tanh, Activation::relu2}) {
    const ExecContext ctx = exec();
    const Tensor x = make_tensor({7}, GetParam(), {-300, -20, -0.0, 20, 300, inf, std::nan("")}, ctx);
    const Tensor y = ctx.empty({7}, GetParam());
    activate_kernel({.x = x, .y = y, .kind = kind}, ctx);
    const Values got = read_values(y, ctx);
    for (std::size_t i : {0, 1, 2}) EXPECT_NEAR(got[i], 0, 1e-30) << i;
    EXPECT_NEAR(got[3], kind == Activation::relu2 ? 400 : 20, 1e-4);
    EXPECT_EQ(got[5], inf);
    EXPECT_TRUE(std::isnan(got[6]));
  }
}

struct SwiGluValues {
  Values y, dgate_up;
};
SwiGluValues swiglu_of(const Values& gate_up, const Values& dy, std::size_t width) {
  SwiGluValues r{Values(dy.size()), Values(gate_up.size())};
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const std::size_t gate = i / width * 2 * width + i % width, up = gate + width;
    const double g = gate_up[gate], s = 1 / (1 + std::exp(-g));
    r.y[i] = g * s * gate_up[up];
    r.dgate_up[gate] = dy[i] * gate_up[up] * s * (1 + g * (1 - s));
    r.dgate_up[up] = dy[i] * g * s;
  }
  return r;
}

TEST_P(GpuMemoryBound, SwiGlu) {
  for (std::int64_t width : {1, 8, 37, 512, 1000, 2048, 4864, 5632})
    for (std::int64_t rows : {0, 1, 203})
      for (std::int64_t edge : {0, 8, 3}) {
        SCOPED_TRACE(str(rows, " x ", width, ", edge ", edge));
        const ExecContext ctx = exec();
        const std::int64_t columns = 2 * width + 2 * edge;
        const Tensor whole = random("gate_up", {rows, columns}, ctx, 4), dy = random("dy", {rows, width}, ctx);
        const Tensor gate_up = whole.narrow(1, edge, 2 * width), y = ctx.empty({rows, width}, GetParam());
        const Values before = read_values(whole, ctx);
        const SwiGluValues want = swiglu_of(columns_of(before, columns, edge, edge + 2 * width), read_values(dy, ctx),
                                            static_cast<std::size_t>(width));
        swiglu_kernel({.gate_up = gate_up, .y = y}, ctx);
        const Tensor fresh = ctx.empty({rows, 2 * width}, GetParam());
        swiglu_backward_kernel({.gate_up = gate_up, .dy = dy, .dgate_up = fresh}, ctx);
        swiglu_backward_kernel({.gate_up = gate_up, .dy = dy, .dgate_up = gate_up}, ctx);
        const Values after = read_values(whole, ctx), in_place = columns_of(after, columns, edge, edge + 2 * width);
        EXPECT_TRUE(close(read_values(y, ctx), want.y, tol()));
        EXPECT_TRUE(close(in_place, want.dgate_up, tol()));
        EXPECT_TRUE(close(read_values(fresh, ctx), want.dgate_up, tol()));
        EXPECT_EQ(columns_of(after, columns, 0, edge), columns_of(before, columns, 0, edge));
        EXPECT_EQ(columns_of(after, columns, columns - edge, columns),
                  columns_of(before, columns, columns - edge, columns));
      }
}

TEST_P(GpuMemoryBound, Axpby) {
  for (std::int64_t n : kCounts)
    for (std::int64_t offset : {0, 1}) {
      SCOPED_TRACE(str(n, " elements from ", offset));
      const ExecContext ctx = exec();
      const Tensor x = random("x", {n}, ctx), whole = random("y", {n + offset}, ctx);
      const Tensor y = whole.narrow(0, offset, n), scaled = ctx.empty({n}, GetParam());
      const Values a = read_values(x, ctx);
      Values b = read_values(whole, ctx);
      b.erase(b.begin(), b.begin() + offset);
      axpby_kernel({.x = x, .y = ctx.empty({n}, GetParam()), .out = scaled, .alpha = -3}, ctx);
      axpby_kernel({.x = x, .y = y, .out = y, .alpha = 2, .beta = 0.5f}, ctx);
      Values sum = read_values(whole, ctx);
      sum.erase(sum.begin(), sum.begin() + offset);
      EXPECT_TRUE(close(read_values(scaled, ctx), mapped(a, [&](auto i) { return -3 * a[i]; }), tol()));
      EXPECT_TRUE(close(sum, mapped(a, [&](auto i) { return 2 * a[i] + 0.5 * b[i]; }), tol()));
    }
}

TEST_P(GpuMemoryBound, CastRoundsToNearestEven) {
  for (std::int64_t n : kCounts)
    for (std::int64_t offset : {0, 1}) {
      SCOPED_TRACE(str(n, " elements from ", offset));
      const ExecContext ctx = exec();
      const Tensor whole = random("x", {n + offset}, ctx, 1000), x = whole.narrow(0, offset, n);
      const Tensor narrow = ctx.empty({n}, DType::bf16), wide = ctx.empty({n});
      Values in = read_values(whole, ctx);
      in.erase(in.begin(), in.begin() + offset);
      cast_kernel({.x = x, .out = narrow}, ctx);
      cast_kernel({.x = x, .out = wide}, ctx);
      EXPECT_EQ(read_values(wide, ctx), in);
      EXPECT_EQ(read_values(narrow, ctx),
                mapped(in, [&](auto i) { return to_float(to_bf16(static_cast<float>(in[i]))); }));
    }
}

Tensor state_of_step(std::uint32_t step, const ExecContext& ctx) {
  const StepState s{.step = step};
  std::vector<std::uint8_t> bytes(sizeof s);
  std::memcpy(bytes.data(), &s, sizeof s);
  return from_host(bytes, ctx.stream);
}

TEST_P(GpuMemoryBound, Dropout) {
  const RandomSite site{.seed = 3, .step = 11, .site = 9};
  for (std::int64_t n : kCounts)
    for (std::int64_t first : {0, 4, 3, 1003}) {
      SCOPED_TRACE(str(n, " elements from ", first));
      const ExecContext ctx = exec();
      const Tensor x = random("x", {n}, ctx), residual = random("residual", {n}, ctx), sum = random("sum", {n}, ctx);
      const Tensor out = ctx.empty({n}, GetParam());
      const Values in = read_values(x, ctx), before = read_values(residual, ctx), old = read_values(sum, ctx);
      auto kept = [&](std::size_t i) {
        const std::uint32_t bits = random_bits(site, static_cast<std::uint64_t>(first) + i);
        return static_cast<double>(to_uniform(bits)) >= static_cast<double>(0.3f) ? in[i] / (1 - 0.3) : 0.0;
      };
      Dropout d{.x = x, .out = out, .rate = 0.3f, .site = site, .first_element = first};
      dropout_kernel(d, ctx);
      EXPECT_TRUE(close(read_values(out, ctx), mapped(in, kept), tol()));
      d.residual = residual;
      d.out = sum;
      d.beta = 2;
      d.site.step = 12345;
      d.state = state_of_step(11, ctx);
      dropout_kernel(d, ctx);
      EXPECT_TRUE(
          close(read_values(sum, ctx), mapped(in, [&](auto i) { return 2 * old[i] + before[i] + kept(i); }), tol()));
    }
}

TEST_P(GpuMemoryBound, NormalNumbersAreThoseOfTheHost) {
  const RandomSite site{.seed = 77, .step = 0, .site = site_of("blocks.3.mlp.up")};
  for (const std::int64_t first : {0, 34})
    for (std::int64_t n : kCounts) {
      const ExecContext ctx = exec();
      const Tensor out = ctx.empty({n}, GetParam());
      random_normal_kernel({.out = out, .site = site, .std = 0.02f, .first_element = first}, ctx);
      const Values got = read_values(out, ctx);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const double want = 0.02f * random_normal(site, static_cast<std::uint64_t>(first) + i);
        ASSERT_NEAR(got[i], want, (GetParam() == DType::bf16 ? 4e-3 : 1e-6) * std::abs(want) + 1e-12) << i;
      }
    }
}

struct RopeCase {
  std::int64_t tokens, heads, width, edge;
  bool inverse;
};
std::ostream& operator<<(std::ostream& out, const RopeCase& c) {
  return out << c.tokens << " x " << c.heads << " x " << c.width << ", edge " << c.edge
             << (c.inverse ? ", inverse" : "");
}

Values rotated(const Values& x, const Values& positions, const Values& inv_freq, const RopeCase& c) {
  Values y(x.size());
  const auto half = static_cast<std::size_t>(c.width / 2), heads = static_cast<std::size_t>(c.heads);
  for (std::size_t row = 0; row < positions.size() * heads; ++row)
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = (c.inverse ? -1 : 1) * positions[row / heads] * inv_freq[i];
      const std::size_t low = row * 2 * half + i, high = low + half;
      y[low] = x[low] * std::cos(angle) - x[high] * std::sin(angle);
      y[high] = x[high] * std::cos(angle) + x[low] * std::sin(angle);
    }
  return y;
}

void check_rope(DType type, const RopeCase& c, const ExecContext& ctx) {
  SCOPED_TRACE(str(c));
  const std::int64_t rows = c.heads * c.width, columns = rows + 2 * c.edge;
  Values positions, inv_freq;
  for (std::int64_t n = 0; n < c.tokens; ++n) positions.push_back(static_cast<double>(n * n * 40013 % 3000017));
  for (std::int64_t i = 0; i < c.width / 2; ++i)
    inv_freq.push_back(
        static_cast<float>(std::pow(500000.0, -2.0 * static_cast<double>(i) / static_cast<double>(c.width))));
  const Tensor whole = make_tensor({c.tokens, columns}, type, random_values("x", c.tokens * columns), ctx);
  const Tensor sum = make_tensor({c.tokens, c.heads, c.width}, type, random_values("sum", c.tokens * rows), ctx);
  const Tensor fresh = ctx.empty({c.tokens, c.heads, c.width}, type);
  const Tensor x = whole.narrow(1, c.edge, rows).split_dim(1, c.width);
  const Values before = read_values(whole, ctx), old = read_values(sum, ctx);
  const Values want = rotated(columns_of(before, columns, c.edge, c.edge + rows), positions, inv_freq, c);
  Rope r{.x = x,
         .out = fresh,
         .positions = make_tensor({c.tokens}, DType::i32, positions, ctx),
         .inv_freq = make_tensor({c.width / 2}, DType::f32, inv_freq, ctx),
         .inverse = c.inverse};
  rope_kernel(r, ctx);
  r.out = sum;
  r.beta = 0.5f;
  rope_kernel(r, ctx);
  r.out = x;
  r.beta = 0;
  rope_kernel(r, ctx);
  const Values after = read_values(whole, ctx), in_place = columns_of(after, columns, c.edge, c.edge + rows);
  EXPECT_TRUE(close(in_place, want, tolerance(type)));
  EXPECT_TRUE(close(read_values(fresh, ctx), want, tolerance(type)));
  EXPECT_TRUE(
      close(read_values(sum, ctx), mapped(want, [&](auto i) { return want[i] + 0.5 * old[i]; }), tolerance(type)));
  EXPECT_EQ(columns_of(after, columns, 0, c.edge), columns_of(before, columns, 0, c.edge));
  EXPECT_EQ(columns_of(after, columns, columns - c.edge, columns),
            columns_of(before, columns, columns - c.edge, columns));
}

TEST_P(GpuMemoryBound, Rope) {
  for (std::int64_t width : {2, 6, 10, 32, 48, 64, 96, 128, 256, 1024})
    for (std::int64_t heads : {1, 3, 24})
      for (std::int64_t edge : {0, 16, 3}) {
        const ExecContext ctx = exec();
        for (std::int64_t tokens : {0, 1, 77}) check_rope(GetParam(), {tokens, heads, width, edge, edge == 16}, ctx);
      }
  check_rope(GetParam(), {3001, 16, 64, 8, false}, exec());
  check_rope(GetParam(), {5, 1, 10000, 8, true}, exec());
}

}  // namespace
}  // namespace ring::test
