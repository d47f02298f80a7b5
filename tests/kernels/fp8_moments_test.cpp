// Moments in FP8: the codes against their definition in float64, and updates of AdamW and Muon on the CPU and on a GPU.
#include "kernels/fp8_moments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/muon.h"
#include "kernels/optimizer.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/step_state_tensor.h"
#include "tests/kernels/values.h"

namespace ring::test {
namespace {

constexpr Fp8Moment kE4m3 = Fp8Moment::e4m3, kE4m4 = Fp8Moment::e4m4;

// The value of a code that is not NaN, in units of its block.
template <Fp8Moment form>
double units_of(std::uint32_t code) {
  constexpr int bits = form == kE4m3 ? 3 : 4;
  const bool negative = form == kE4m3 && code & 0x80u;
  const std::uint32_t magnitude = form == kE4m3 ? code & 0x7fu : code;
  const int exponent = static_cast<int>(magnitude >> bits), fraction = static_cast<int>(magnitude % (1u << bits));
  const double size = exponent == 0 ? fraction : std::ldexp((1 << bits) + fraction, exponent - 1);
  return negative ? -size : size;
}
double unit_of(std::uint32_t scale) { return std::ldexp(1.0, static_cast<int>(scale) - 127); }

template <Fp8Moment form>
constexpr std::uint32_t kMaxMomentCode = form == kE4m3 ? 0x7e : 0xfe;

template <class F>
void for_both_forms(const F& f) {
  f.template operator()<kE4m3>();
  f.template operator()<kE4m4>();
}

TEST(Fp8Moments, CodesHaveTheDefinedValues) {
  for_both_forms([]<Fp8Moment form>() {
    for (std::uint32_t code = 0; code < 256; ++code)
      for (const std::uint32_t scale : {1u, 100u, 127u, 230u}) {
        const double value = from_fp8_moment<form>(code, scale);
        if ((form == kE4m3 ? code & 0x7fu : code) > kMaxMomentCode<form>) {
          EXPECT_TRUE(std::isnan(value)) << code;
          continue;
        }
        EXPECT_EQ(value, units_of<form>(code) * unit_of(scale)) << code << " with scale " << scale;
        if (value == 0) continue;
        for (const std::uint32_t random : {0u, 1u, kToNearest, 0xffffu})
          EXPECT_EQ(to_fp8_moment<form>(static_cast<float>(value), scale, random), code) << random;
      }
    EXPECT_EQ(from_fp8_moment<form>(0, 0), 0.0f) << "memory of zeros";
  });
}

TEST(Fp8Moments, TheScaleIsTheSmallestThatFits) {
  for_both_forms([]<Fp8Moment form>() {
    const double largest = units_of<form>(kMaxMomentCode<form>);
    for (const double max : {1.0, 1.74, 1.75, 1.76, 1.87, 1.875, 1.876, 1.999, 3e-20, 1e-33, 1.7e38}) {
      const auto f = static_cast<float>(max);
      const std::uint32_t scale = fp8_moment_scale<form>(finite_magnitude(f));
      EXPECT_LE(f, largest * unit_of(scale)) << max;
      if (scale > 1) {
        EXPECT_GT(f, largest * unit_of(scale - 1)) << max;
      }
    }
    EXPECT_EQ(fp8_moment_scale<form>(0), 1u);
    EXPECT_EQ(fp8_moment_scale<form>(finite_magnitude(1e-42f)), 1u) << "units of 2^-126";
  });
  EXPECT_EQ(finite_magnitude(INFINITY) | finite_magnitude(NAN) | finite_magnitude(-INFINITY), 0u);
}

// A block of 16 elements whose sizes differ by up to `octaves` powers of two.
std::vector<float> moment_block(const std::string& name, double octaves, bool is_signed) {
  const Values mantissas = random_values(name, kMomentBlock),
               exponents = random_values(name + " exponents", kMomentBlock);
  std::vector<float> block;
  for (std::size_t i = 0; i < mantissas.size(); ++i) {
    const double x = mantissas[i] * std::exp2(octaves * std::tanh(exponents[i]) / 2);
    block.push_back(static_cast<float>(is_signed ? x : std::abs(x)));
  }
  return block;
}

struct CodedBlock {
  std::uint8_t codes[kMomentBlock], scale;
};
template <Fp8Moment form, class Random>
CodedBlock coded(const std::vector<float>& block, const Random& random) {
  CodedBlock c{};
  write_moment_block<form>(block.data(), std::ssize(block), c.codes, &c.scale, random);
  return c;
}
template <Fp8Moment form>
std::vector<float> decoded(const CodedBlock& c, std::size_t n) {
  std::vector<float> values(n);
  read_moment_block<form>(c.codes, c.scale, std::ssize(values), values.data());
  return values;
}

TEST(Fp8Moments, ErrorsAreWithinTheSpacingOfCodes) {
  for_both_forms([]<Fp8Moment form>() {
    const double relative = form == kE4m3 ? 0x1p-3 : 0x1p-4;
    for (const double octaves : {0.0, 6.0, 20.0, 60.0})
      for (int i = 0; i < 200; ++i) {
        const std::vector<float> block = moment_block(str("block", i), octaves, form == kE4m3);
        for (const std::uint32_t random : {0u, 0x1234u, kToNearest, 0xffffu}) {
          const CodedBlock c = coded<form>(block, [&](std::int64_t) { return random; });
          const std::vector<float> got = decoded<form>(c, block.size());
          for (std::size_t j = 0; j < block.size(); ++j) {
            const double x = block[j], spacing = std::max(unit_of(c.scale), relative * std::abs(x));
            ASSERT_LE(std::abs(got[j] - x),
                      random == kToNearest && std::abs(x) >= unit_of(c.scale) ? spacing / 2 : spacing)
                << x;
            if (form == kE4m4 && x > 0) {
              ASSERT_GT(got[j], 0) << x << ": updates of m / eps";
            }
          }
        }
      }
  });
}

TEST(Fp8Moments, RandomRoundingIsUnbiased) {
  for_both_forms([]<Fp8Moment form>() {
    for (const double units : {1.25, 7.9, 15.3, 17.1, 100.7, 5000.5, 200000.0}) {
      const auto x = static_cast<float>(units * unit_of(90));
      double sum = 0;
      for (std::uint32_t random = 0; random < 0x10000; ++random)
        sum += from_fp8_moment<form>(to_fp8_moment<form>(x, 90, random), 90) / static_cast<double>(x);
      EXPECT_NEAR(sum / 0x10000, 1, 3e-6) << units;
    }
  });
}

TEST(Fp8Moments, QuantizingAgainChangesNoValue) {
  for_both_forms([]<Fp8Moment form>() {
    for (const double octaves : {0.0, 10.0, 60.0, 250.0})
      for (std::uint32_t i = 0; i < 300; ++i) {
        const std::vector<float> block = moment_block(str("again", i), octaves, form == kE4m3);
        const auto random = [&](std::int64_t j) {
          return (i * 40503u + static_cast<std::uint32_t>(j) * 977u) & 0xffffu;
        };
        const std::vector<float> once = decoded<form>(coded<form>(block, random), block.size());
        EXPECT_EQ(decoded<form>(coded<form>(once, [](std::int64_t) { return 0xffffu; }), once.size()), once);
        EXPECT_EQ(decoded<form>(coded<form>(once, [](std::int64_t) { return 0u; }), once.size()), once);
      }
  });
}

TEST(Fp8Moments, ExtremeBlocks) {
  const auto nearest = [](std::int64_t) { return kToNearest; };
  for_both_forms([&]<Fp8Moment form>() {
    const auto again = [&](const std::vector<float>& block) {
      return decoded<form>(coded<form>(block, nearest), block.size());
    };
    EXPECT_EQ(again(std::vector<float>(16, 0.0f)), std::vector<float>(16, 0.0f));
    EXPECT_EQ(again({0.0f, 1.0f}), (std::vector<float>{0, 1})) << "a short block";
    const float max = std::nextafter(0x1p127f, 0.0f), tiny = std::numeric_limits<float>::denorm_min();
    EXPECT_NEAR(again({max, 1.0f})[0] / max, 1, form == kE4m3 ? 0x1p-4 : 0x1p-5);
    EXPECT_EQ(again({tiny, 0.0f}), (std::vector<float>{form == kE4m4 ? 0x1p-126f : 0, 0})) << "subnormal";
    EXPECT_TRUE(std::isnan(again({1.0f, 0x1p127f})[1])) << "could round to infinity";
    const std::vector<float> bad = again({1.0f, INFINITY, NAN, 0.5f});
    EXPECT_TRUE(std::isnan(bad[1]) && std::isnan(bad[2])) << "never a number";
    EXPECT_EQ(bad[0], 1.0f);
    EXPECT_EQ(bad[3], 0.5f);
  });
  EXPECT_TRUE(std::isnan(decoded<kE4m4>(coded<kE4m4>({-1.0f, 1.0f}, nearest), 2)[0])) << "v cannot be negative";
  EXPECT_EQ(decoded<kE4m4>(coded<kE4m4>({-0.0f, 1.0f}, nearest), 2)[0], 0.0f);
}

// ----------------------------------------------------------------------------------------------------------- updates

using Codes = std::vector<std::uint8_t>;

template <Fp8Moment form>
struct CodedMoments {
  Codes codes, scales;
  CodedMoments() = default;
  explicit CodedMoments(const Values& values)
      : codes(values.size()), scales(static_cast<std::size_t>(moment_blocks(std::ssize(values)))) {
    for (std::size_t i = 0; i < values.size(); i += kMomentBlock) {
      const std::vector<float> block(
          values.begin() + static_cast<std::ptrdiff_t>(i),
          values.begin() + std::min(std::ssize(values), static_cast<std::ptrdiff_t>(i) + 16));
      write_moment_block<form>(block.data(), std::ssize(block), &codes[i], &scales[i / kMomentBlock],
                               [](std::int64_t) { return kToNearest; });
    }
  }
  double operator[](std::size_t i) const { return from_fp8_moment<form>(codes[i], scales[i / kMomentBlock]); }
  double spacing(std::size_t i, double x) const {
    return std::max(unit_of(scales[i / kMomentBlock]), (form == kE4m3 ? 0x1p-3 : 0x1p-4) * std::abs(x));
  }
  bool operator==(const CodedMoments&) const = default;
};

struct CodedAdam {
  Values param, grad;
  CodedMoments<kE4m3> m;
  CodedMoments<kE4m4> v;
};

const AdamW kCodedSettings{.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .lr_scale = 0.5f};
constexpr StepState kCodedStep{.step = 4, .lr = 0.02f, .decay_scale = 3, .clip = 0.7f};
constexpr RandomSite kCodedSite{.seed = 0x123456789abcdefull, .step = 99, .site = 5};

CodedAdam coded_adam(std::int64_t n) {
  Values v = random_values("v", n, 0.1);
  for (double& x : v) x = x * x;
  Values param = random_values("param", n), grad = random_values("grad", n);
  for (Values* values : {&param, &grad})
    for (double& x : *values) x = static_cast<float>(x);
  return {param, grad, CodedMoments<kE4m3>(random_values("m", n, 0.1)), CodedMoments<kE4m4>(v)};
}

struct AdamPlace {
  std::int64_t first = 0;  // global index of element 0
  std::int64_t left = 0;   // elements before the parameters: makes their addresses unaligned
  StepState state = kCodedStep;
};

CodedAdam run_coded(const CodedAdam& in, const ExecContext& ctx, const AdamPlace& place = {}) {
  const auto n = static_cast<std::int64_t>(in.param.size());
  const auto put = [&](const Values& v) {
    Values all(static_cast<std::size_t>(place.left), 0.0);
    all.insert(all.end(), v.begin(), v.end());
    return make_tensor({n + place.left}, DType::f32, all, ctx).narrow(0, place.left, n);
  };
  AdamW a = kCodedSettings;
  a.param = put(in.param);
  a.grad = put(in.grad);
  a.m = from_host(in.m.codes, ctx.stream);
  a.v = from_host(in.v.codes, ctx.stream);
  a.m_scales = from_host(in.m.scales, ctx.stream);
  a.v_scales = from_host(in.v.scales, ctx.stream);
  a.state = state_tensor(place.state, ctx);
  a.site = kCodedSite;
  a.first_element = place.first;
  adamw_kernel(a, ctx);
  CodedAdam out{read_values(a.param, ctx), in.grad, {}, {}};
  out.m.codes = to_host<std::uint8_t>(a.m, ctx.stream);
  out.v.codes = to_host<std::uint8_t>(a.v, ctx.stream);
  out.m.scales = to_host<std::uint8_t>(a.m_scales, ctx.stream);
  out.v.scales = to_host<std::uint8_t>(a.v_scales, ctx.stream);
  return out;
}

void expect_same_coded(const CodedAdam& a, const CodedAdam& b) {
  EXPECT_EQ(a.param, b.param);
  EXPECT_TRUE(a.m == b.m);
  EXPECT_TRUE(a.v == b.v);
}

CodedAdam part_of_adam(const CodedAdam& a, std::size_t begin, std::size_t end) {
  const auto cut = [](const auto& all, std::size_t from, std::size_t to) {
    return std::decay_t<decltype(all)>(all.begin() + static_cast<std::ptrdiff_t>(from),
                                       all.begin() + static_cast<std::ptrdiff_t>(to));
  };
  CodedAdam out{cut(a.param, begin, end), cut(a.grad, begin, end), {}, {}};
  const auto blocks = [](std::size_t n) { return (n + kMomentBlock - 1) / kMomentBlock; };
  out.m.codes = cut(a.m.codes, begin, end);
  out.v.codes = cut(a.v.codes, begin, end);
  out.m.scales = cut(a.m.scales, begin / kMomentBlock, blocks(end));
  out.v.scales = cut(a.v.scales, begin / kMomentBlock, blocks(end));
  return out;
}

// Algorithm 2 of the AdamW paper in f64, from the decoded moments.
void expect_adam_step(const CodedAdam& in, const CodedAdam& got) {
  const double b1 = kCodedSettings.beta1, b2 = kCodedSettings.beta2, t = kCodedStep.step + 1;
  const double lr = static_cast<double>(kCodedStep.lr) * kCodedSettings.lr_scale;
  Values want;
  for (std::size_t i = 0; i < in.param.size(); ++i) {
    const double g = in.grad[i] * kCodedStep.clip;
    const double m = b1 * in.m[i] + (1 - b1) * g, v = b2 * in.v[i] + (1 - b2) * g * g;
    ASSERT_LE(std::abs(got.m[i] - m), got.m.spacing(i, m) * 1.001) << i;
    ASSERT_LE(std::abs(got.v[i] - v), got.v.spacing(i, v) * 1.001) << i;
    ASSERT_TRUE(got.v[i] > 0 || v == 0) << i;
    const double m_hat = m / (1 - std::pow(b1, t)), v_hat = v / (1 - std::pow(b2, t));
    want.push_back((1 - lr * kCodedSettings.weight_decay * kCodedStep.decay_scale) * in.param[i] -
                   lr * m_hat / (std::sqrt(v_hat) + kCodedSettings.eps));
  }
  EXPECT_LT(relative_error(got.param, want), 1e-6);
}

void expect_adam_steps(const ExecContext& ctx) {
  for (const std::int64_t n : {1, 7, 16, 100, 2048, 2049, 50003}) {
    SCOPED_TRACE(str(n, " elements"));
    const CodedAdam in = coded_adam(n), got = run_coded(in, ctx);
    expect_adam_step(in, got);
    expect_same_coded(run_coded(in, ctx), got);
    expect_same_coded(run_coded(in, ctx, {.left = 1}), got);
    if (n <= 160) continue;
    for (const std::size_t cut : {std::size_t{16}, std::size_t{160}}) {  // results do not depend on the grouping
      const auto end = in.param.size();
      expect_same_coded(run_coded(part_of_adam(in, 0, cut), ctx), part_of_adam(got, 0, cut));
      expect_same_coded(run_coded(part_of_adam(in, cut, end), ctx, {.first = static_cast<std::int64_t>(cut)}),
                        part_of_adam(got, cut, end));
    }
  }
}

// A refused step changes nothing. An accepted step stores what is not finite as NaN, in its element only.
void expect_bad_steps_are_visible(const ExecContext& ctx) {
  CodedAdam in = coded_adam(5000);
  StepState refused = kCodedStep;
  refused.accepted = 0;
  expect_same_coded(run_coded(in, ctx, {.state = refused}), in);
  in.grad[77] = INFINITY;
  in.grad[1000] = NAN;
  const CodedAdam got = run_coded(in, ctx);
  for (std::size_t i = 0; i < in.param.size(); ++i) {
    const bool bad = i == 77 || i == 1000;
    EXPECT_EQ(std::isnan(got.m[i]), bad) << i;
    EXPECT_EQ(std::isnan(got.v[i]), bad) << i;
  }
  EXPECT_TRUE(std::isnan(run_coded(got, ctx).param[77])) << "the next step shows it";
}

TEST(AdamWFp8, StepsMatchTheReference) {
  for (const int threads : {1, 3}) expect_adam_steps(poisoned_context(threads));
}
TEST(AdamWFp8, BadStepsAreVisible) { expect_bad_steps_are_visible(poisoned_context(2)); }

// Without gradients a step is m = beta1 m and v = beta2 v, rounded with the bits that are defined for each element.
void expect_promised_bits(const ExecContext& ctx) {
  CodedAdam in = coded_adam(3000);
  in.grad.assign(in.grad.size(), 0.0);
  const std::uint64_t first = 800;
  const CodedAdam got = run_coded(in, ctx, {.first = static_cast<std::int64_t>(first)});
  const RandomSite site{kCodedSite.seed, kCodedStep.step, kCodedSite.site};
  const auto random = [&](std::size_t i, std::uint64_t target) {
    const std::uint64_t e = first + i;
    const std::uint32_t word = random_block(site, 4 * (e / 8) + target).v[e % 8 / 2];
    return e % 2 ? word >> 16 : word & 0xffffu;
  };
  for (std::size_t i = 0; i < in.param.size(); ++i) {
    const auto m = static_cast<float>(in.m[i]) * kCodedSettings.beta1,
               v = static_cast<float>(in.v[i]) * kCodedSettings.beta2;
    ASSERT_EQ(got.m.codes[i], to_fp8_moment<kE4m3>(m, got.m.scales[i / 16], random(i, 1))) << i;
    ASSERT_EQ(got.v.codes[i], to_fp8_moment<kE4m4>(v, got.v.scales[i / 16], random(i, 2))) << i;
  }
  EXPECT_FALSE(run_coded(in, ctx).m == got.m) << "other elements have other bits";
}
TEST(AdamWFp8, RoundsWithThePromisedBits) { expect_promised_bits(poisoned_context(2)); }

TEST(AdamWFp8, ScalesMustFit) {
  const ExecContext ctx = poisoned_context(1);
  const Tensor f = ctx.zeros({20}), codes = ctx.zeros({20}, DType::u8), scales = ctx.zeros({2}, DType::u8);
  AdamW a{.param = f, .grad = f, .m = codes, .v = codes, .state = state_tensor({}, ctx)};
  EXPECT_THROW(adamw_kernel(a, ctx), Error) << "no scales";
  a.m_scales = a.v_scales = scales;
  EXPECT_NO_THROW(adamw_kernel(a, ctx));
  a.v_scales = ctx.zeros({1}, DType::u8);
  EXPECT_THROW(adamw_kernel(a, ctx), Error) << "too few scales";
  a.v = f, a.v_scales = {};
  EXPECT_THROW(adamw_kernel(a, ctx), Error) << "moments of two types";
}

// Changes of v far below the spacing of codes: rounded to nearest, v would never change.
TEST(AdamWFp8, SmallChangesAddUp) {
  const ExecContext ctx = poisoned_context(2);
  constexpr std::int64_t n = 8192;
  AdamW a{.param = ctx.zeros({n}),
          .grad = ctx.zeros({n}),
          .m = ctx.zeros({n}, DType::u8),
          .v = from_host(CodedMoments<kE4m4>(Values(n, 1.0)).codes, ctx.stream),
          .beta2 = 0.999f,
          .m_scales = ctx.zeros({n / 16}, DType::u8),
          .v_scales = from_host(CodedMoments<kE4m4>(Values(n, 1.0)).scales, ctx.stream)};
  constexpr int steps = 500;
  for (std::uint32_t t = 0; t < steps; ++t) {
    a.state = state_tensor({.step = t, .lr = 0.1f}, ctx);
    adamw_kernel(a, ctx);
  }
  CodedMoments<kE4m4> v;
  v.codes = to_host<std::uint8_t>(a.v, ctx.stream), v.scales = to_host<std::uint8_t>(a.v_scales, ctx.stream);
  double mean = 0;
  for (std::size_t i = 0; i < n; ++i) mean += v[i] / n;
  EXPECT_NEAR(mean / std::pow(0.999, steps), 1, 0.03);
}

// Noisy linear regression with features whose sizes differ by a factor of 1000. Returns the mean loss of the last
// steps.
double regression_loss(bool fp8) {
  const ExecContext ctx = poisoned_context(1);
  constexpr std::int64_t n = 64;
  const Values target = random_values("target", n);
  AdamW a{.param = ctx.zeros({n}), .grad = ctx.zeros({n})};
  const auto zeros = [&] { return fp8 ? ctx.zeros({n}, DType::u8) : ctx.zeros({n}); };
  a.m = zeros(), a.v = zeros();
  if (fp8) a.m_scales = ctx.zeros({n / 16}, DType::u8), a.v_scales = ctx.zeros({n / 16}, DType::u8);
  double last = 0;
  constexpr int steps = 1500, counted = 200;
  for (int t = 0; t < steps; ++t) {
    const Values x = random_values(str("x", t), n), noise = random_values(str("noise", t), 1);
    const Values w = read_values(a.param, ctx);
    double error = 0.1 * noise[0];
    const auto size = [](std::size_t i) { return std::pow(10.0, -static_cast<double>(i % 4)); };
    for (std::size_t i = 0; i < n; ++i) error += (w[i] - target[i]) * x[i] * size(i);
    for (std::size_t i = 0; i < n; ++i) a.grad.data<float>()[i] = static_cast<float>(error * x[i] * size(i));
    a.state =
        state_tensor({.step = static_cast<std::uint32_t>(t), .lr = 0.02f * (1 - static_cast<float>(t) / steps)}, ctx);
    adamw_kernel(a, ctx);
    if (t < steps - counted) continue;
    for (std::size_t i = 0; i < n; ++i) last += std::pow((w[i] - target[i]) * size(i), 2) / counted;
  }
  return last;
}

TEST(AdamWFp8, ConvergesLikeF32) {
  double start = 0;
  for (std::size_t i = 0; i < 64; ++i) start += std::pow(random_values("target", 64)[i] * std::pow(0.1, i % 4), 2);
  const double plain = regression_loss(false), coded = regression_loss(true);
  EXPECT_LT(plain, 0.01 * start);
  EXPECT_NEAR(coded, plain, 0.25 * plain + 1e-4 * start);
}

// -------------------------------------------------------------------------------------------------------------- Muon

struct CodedMuon {
  CodedMoments<kE4m3> momentum;
  Values update;
};

CodedMuon run_coded_muon(const CodedMoments<kE4m3>& momentum, const Values& grad, std::int64_t matrices,
                         const ExecContext& ctx, std::uint32_t accepted = 1) {
  const bool gpu = ctx.stream.device().backend == Backend::cuda;
  const auto n = std::ssize(grad) / matrices, blocks = moment_blocks(n);
  const Tensor codes = from_host(momentum.codes, ctx.stream), scales = from_host(momentum.scales, ctx.stream);
  const Tensor g = make_tensor({std::ssize(grad)}, DType::f32, grad, ctx), w = ctx.zeros({n});
  MuonMomentum args{.update = ctx.zeros({matrices, n}, gpu ? DType::bf16 : DType::f32)};
  for (std::int64_t i = 0; i < matrices; ++i)
    args.matrices.push_back({.values = w,
                             .gradient = g.narrow(0, i * n, n),
                             .momentum = codes.narrow(0, i * n, n),
                             .first_element = i * n,
                             .momentum_scales = scales.narrow(0, i * blocks, blocks)});
  args.state = state_tensor({.step = 3, .clip = 0.5f, .accepted = accepted}, ctx);
  args.beta = 0.75f;
  args.site = kCodedSite;
  muon_momentum_kernel(args, ctx);
  CodedMuon out{{}, read_values(args.update, ctx)};
  out.momentum.codes = to_host<std::uint8_t>(codes, ctx.stream);
  out.momentum.scales = to_host<std::uint8_t>(scales, ctx.stream);
  return out;
}

void expect_muon_momentum(const ExecContext& ctx, double bound) {
  for (const auto& [matrices, n] : {std::pair{1, 16}, {3, 1600}, {70, 2064}}) {
    const std::int64_t all = std::int64_t{matrices} * n;
    const CodedMoments<kE4m3> before(random_values("momentum", all, 3));
    Values grad = random_values("gradient", all), update;
    for (double& x : grad) x = static_cast<float>(x);
    const CodedMuon got = run_coded_muon(before, grad, matrices, ctx);
    for (std::size_t i = 0; i < grad.size(); ++i) {
      const double m = 0.75 * before[i] + 0.5 * grad[i];
      ASSERT_LE(std::abs(got.momentum[i] - m), got.momentum.spacing(i, m) * 1.001) << i;
      update.push_back(0.5 * grad[i] + 0.75 * m);
    }
    EXPECT_LT(relative_error(got.update, update), bound);
    EXPECT_TRUE(run_coded_muon(before, grad, matrices, ctx).momentum == got.momentum);
    EXPECT_TRUE(run_coded_muon(before, grad, matrices, ctx, 0).momentum == before) << "a refused step";
  }
}
TEST(MuonFp8, MomentumMatchesTheReference) { expect_muon_momentum(poisoned_context(2), 2e-6); }

// ------------------------------------------------------------------------------------------------------------ on GPUs

class GpuFp8Moments : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }
  static ExecContext context() { return poisoned_device_context({Backend::cuda, 0}); }
};

TEST_F(GpuFp8Moments, AdamWStepsMatchTheReference) { expect_adam_steps(context()); }
TEST_F(GpuFp8Moments, AdamWBadStepsAreVisible) { expect_bad_steps_are_visible(context()); }
TEST_F(GpuFp8Moments, AdamWRoundsWithThePromisedBits) { expect_promised_bits(context()); }
TEST_F(GpuFp8Moments, MuonMomentumMatchesTheReference) { expect_muon_momentum(context(), 4e-3); }

// Exact products: a GPU's codes and scales are those of the CPU.
TEST_F(GpuFp8Moments, AreQuantizedAsOnTheCpu) {
  CodedAdam in = coded_adam(20000);
  in.grad.assign(in.grad.size(), 0.0);
  const CodedAdam cpu = run_coded(in, poisoned_context(2)), gpu = run_coded(in, context());
  EXPECT_TRUE(gpu.m == cpu.m);
  EXPECT_TRUE(gpu.v == cpu.v);
  const CodedMoments<kE4m3> momentum(random_values("momentum", 3200));
  const Values zeros(3200, 0.0);
  EXPECT_TRUE(run_coded_muon(momentum, zeros, 2, context()).momentum ==
              run_coded_muon(momentum, zeros, 2, poisoned_context(2)).momentum);
}

}  // namespace
}  // namespace ring::test
