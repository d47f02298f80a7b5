// FP8 against definitions in float64: e4m3, blockwise quantization and products of quantized matrices.
#include "kernels/fp8.h"

#include <cmath>
#include <limits>

#include "tests/kernels/op_case_checks.h"
#include "tests/kernels/target.h"

namespace ring::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

// By the definition (OCP 8-bit floating point specification, 1.0): sign, 4 bits of exponent with bias 7, 3 of mantissa.
double e4m3_value(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return kNaN;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

// The code of the nearest value, of two the even one.
std::uint8_t nearest_code(double x) {
  static const Values values = [] {
    Values v;
    for (int code = 0; code < 0x7f; ++code) v.push_back(e4m3_value(code));
    return v;
  }();
  if (!std::isfinite(x)) return 0x7f;
  const double magnitude = std::abs(x);
  auto code = static_cast<int>(std::ranges::lower_bound(values, magnitude) - values.begin());
  code = std::min(code, 0x7e);
  if (code > 0) {
    const double up = e4m3_value(code) - magnitude, down = magnitude - e4m3_value(code - 1);
    if (down < up || (down == up && code % 2)) --code;
  }
  return static_cast<std::uint8_t>(code | (std::signbit(x) ? 0x80 : 0));
}

TEST(E4m3, EveryCodeKeepsItsValue) {
  for (int code = 0; code < 256; ++code) {
    const float value = from_e4m3(static_cast<std::uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_EQ(to_e4m3(value), kE4m3NaN);
    } else {
      EXPECT_EQ(value, e4m3_value(code)) << code;
      EXPECT_EQ(to_e4m3(value), code);
    }
  }
}

TEST(E4m3, RoundsToNearestEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto low = static_cast<float>(e4m3_value(code)), high = static_cast<float>(e4m3_value(code + 1));
    const float middle = (low + high) / 2;
    for (const float x : {low, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 500.0f),
                          std::nextafter(low, 500.0f), std::nextafter(high, 0.0f)})
      for (const float sign : {1.0f, -1.0f}) EXPECT_EQ(to_e4m3(sign * x), nearest_code(sign * x)) << sign * x;
  }
}

TEST(E4m3, SaturatesFiniteNumbersOnly) {
  for (const float x : {448.0f, 463.9f, 464.0f, 480.0f, 1e30f, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(to_e4m3(x), 0x7e) << x;
    EXPECT_EQ(to_e4m3(-x), 0xfe) << x;
  }
  for (const double x : {kInf, -kInf, kNaN, -kNaN}) EXPECT_EQ(to_e4m3(static_cast<float>(x)), kE4m3NaN);
  EXPECT_EQ(to_e4m3(-0.0f), 0x80);
  EXPECT_EQ(to_e4m3(std::numeric_limits<float>::denorm_min()), 0);
}

// The smallest power of two of at least 2^-126 that brings max below 448.
double scale_of(double max) {
  if (max == 0 || std::isinf(max)) return 1;
  double scale = std::ldexp(1, -126);
  while (max / scale > 448) scale *= 2;
  return scale;
}

TEST(Fp8Scale, IsTheSmallestPowerOfTwoThatSaturatesNothing) {
  for (int exponent = -149; exponent < 128; ++exponent)
    for (const double mantissa :
         {1.0, 1.25, 1.75, std::nextafter(1.75f, 0.0f) + 0.0, std::nextafter(1.75f, 2.0f) + 0.0}) {
      const auto max = static_cast<float>(std::ldexp(mantissa, exponent));
      if (!std::isfinite(max)) continue;
      const Fp8Scale s = fp8_scale(max);
      EXPECT_EQ(s.scale, scale_of(max)) << max;
      EXPECT_EQ(s.scale * s.factor, 1) << max;
    }
  EXPECT_EQ(fp8_scale(0).scale, 1);
  EXPECT_EQ(fp8_scale(static_cast<float>(kInf)).factor, 0);
}

// A quantized matrix on the host, rows without what is between them.
struct HostFp8 {
  std::vector<std::uint8_t> values;
  std::vector<float> scales;
  bool operator==(const HostFp8&) const = default;
};
template <class T>
std::vector<T> read_rows(const Tensor& t, const ExecContext& ctx) {
  std::vector<T> rows;
  for (std::int64_t r = 0; r < t.dim(0); ++r) {
    const std::vector<T> row = to_host<T>(t.narrow(0, r, 1).view({t.dim(1)}), ctx.stream);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}
HostFp8 read(const Fp8Matrix& m, const ExecContext& ctx) {
  return {read_rows<std::uint8_t>(m.values, ctx), read_rows<float>(m.scales, ctx)};
}

struct Extents {
  std::int64_t rows, columns;
};
constexpr Extents kExtents[] = {{1, 1},     {5, 130},   {128, 128}, {130, 16},  {200, 300},
                                {257, 264}, {384, 128}, {96, 1000}, {1000, 96}, {129, 129}};

// Row-major [rows,columns] with blocks of `height` x `width`; scales by block row, then block column.
struct Reference {
  std::vector<std::uint8_t> values;
  Values scales, decoded;
};
Reference quantized(const Values& x, const Extents& e, std::int64_t height, std::int64_t width) {
  Reference q{std::vector<std::uint8_t>(x.size()), {}, Values(x.size())};
  for (std::int64_t top = 0; top < e.rows; top += height)
    for (std::int64_t left = 0; left < e.columns; left += width) {
      const auto each = [&](const auto& f) {
        for (std::int64_t r = top; r < std::min(top + height, e.rows); ++r)
          for (std::int64_t c = left; c < std::min(left + width, e.columns); ++c)
            f(static_cast<std::size_t>(r * e.columns + c));
      };
      double max = 0;
      each([&](std::size_t i) { max = std::isnan(x[i]) ? max : std::max(max, std::abs(x[i])); });
      const double scale = scale_of(max);
      q.scales.push_back(scale);
      each([&](std::size_t i) {
        q.values[i] =
            std::isinf(max) && std::isfinite(x[i]) ? (std::signbit(x[i]) ? 0x80 : 0) : nearest_code(x[i] / scale);
        q.decoded[i] = e4m3_value(q.values[i]) * scale;
      });
    }
  return q;
}

template <class T>
std::vector<T> transposed(const std::vector<T>& x, std::int64_t rows, std::int64_t columns) {
  std::vector<T> t;
  for (std::int64_t c = 0; c < columns; ++c)
    for (std::int64_t r = 0; r < rows; ++r) t.push_back(x[static_cast<std::size_t>(r * columns + c)]);
  return t;
}

// Random numbers of very different sizes, with blocks of all zeros, of subnormal numbers and of the largest ones, and,
// unless finite, a NaN and an infinity.
Values planted(const Extents& e, DType dtype, bool finite) {
  Values x = random_values("x", e.rows * e.columns);
  const auto block = [](std::int64_t i) { return i / kFp8Block; };
  for (std::int64_t r = 0; r < e.rows; ++r)
    for (std::int64_t c = 0; c < e.columns; ++c) {
      double& v = x[static_cast<std::size_t>(r * e.columns + c)];
      v = std::ldexp(v, static_cast<int>((r * 7 + c * 3) % 23) - 12);
      if (finite) continue;
      if (r % 37 == 3 || c % 41 == 5) v = 0;
      if (block(r) == 1 && block(c) == 0) v = std::ldexp(v, -135);
      if (block(r) == 0 && block(c) == 1) v = std::ldexp(v, 126);
      if (r % 61 == 17 && c == 9) v = kNaN;
      if (r % 67 == 11 && c % 128 == 77) v = r % 2 ? kInf : -kInf;
      if (r % 29 == 8 && c == 2) v = -0.0;
    }
  for (double& v : x) v = dtype == DType::bf16 ? to_float(to_bf16(static_cast<float>(v))) : static_cast<float>(v);
  return x;
}

class Fp8 : public OnTarget {
 protected:
  Tensor make(const Extents& e, const Values& x, const ExecContext& ctx) const {
    return make_tensor({e.rows, e.columns}, GetParam().dtype, x, ctx);
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, Fp8, testing::Values(Target{}, Target{Backend::cpu, DType::bf16}),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Gpu, Fp8, testing::Values(Target{Backend::cuda}, Target{Backend::cuda, DType::bf16}),
                         testing::PrintToStringParamName());

std::vector<float> floats(const Values& v) { return {v.begin(), v.end()}; }

TEST_P(Fp8, QuantizesRowsAndTheirTranspose) {
  for (const Extents& e : kExtents) {
    SCOPED_TRACE(str(e.rows, " x ", e.columns));
    const ExecContext ctx = context();
    const Values x = planted(e, GetParam().dtype, false);
    const QuantizeFp8 q{make(e, x, ctx), empty_fp8(e.rows, e.columns, Fp8Blocks::rows, ctx),
                        empty_fp8(e.columns, e.rows, Fp8Blocks::rows, ctx)};
    quantize_fp8_kernel(q, ctx);
    const Reference by_row = quantized(x, e, 1, kFp8Block), by_column = quantized(x, e, kFp8Block, 1);
    const HostFp8 want{by_row.values, floats(transposed(by_row.scales, e.rows, fp8_blocks(e.columns)))};
    EXPECT_EQ(read(q.out, ctx), want);
    EXPECT_EQ(read(q.transposed, ctx),
              (HostFp8{transposed(by_column.values, e.rows, e.columns), floats(by_column.scales)}));
    const Fp8Matrix alone = empty_fp8(e.rows, e.columns, Fp8Blocks::rows, ctx);
    quantize_fp8_kernel({q.x, alone, {}}, ctx);
    EXPECT_EQ(read(alone, ctx), want);
  }
}

TEST_P(Fp8, QuantizesSquaresWhoseTransposeSharesTheScales) {
  for (const Extents& e : kExtents) {
    SCOPED_TRACE(str(e.rows, " x ", e.columns));
    const ExecContext ctx = context();
    const Values x = planted(e, GetParam().dtype, false);
    const QuantizeFp8 q{make(e, x, ctx), empty_fp8(e.rows, e.columns, Fp8Blocks::squares, ctx),
                        empty_fp8(e.columns, e.rows, Fp8Blocks::squares, ctx)};
    quantize_fp8_kernel(q, ctx);
    const Reference want = quantized(x, e, kFp8Block, kFp8Block);
    EXPECT_EQ(read(q.out, ctx), (HostFp8{want.values, floats(want.scales)}));
    EXPECT_EQ(read(q.transposed, ctx),
              (HostFp8{transposed(want.values, e.rows, e.columns),
                       floats(transposed(want.scales, fp8_blocks(e.rows), fp8_blocks(e.columns)))}));
  }
}

// A part of a matrix that starts at a multiple of 128 has the bytes that it has in the whole.
TEST_P(Fp8, QuantizesAPartLikeTheWhole) {
  const ExecContext ctx = context();
  const Extents e{300, 136};
  const Tensor x = make(e, planted(e, GetParam().dtype, true), ctx);
  const Fp8Matrix whole = empty_fp8(e.rows, e.columns, Fp8Blocks::rows, ctx);
  const Fp8Matrix part = empty_fp8(172, e.columns, Fp8Blocks::rows, ctx);
  quantize_fp8_kernel({x, whole, {}}, ctx);
  quantize_fp8_kernel({x.narrow(0, 128, 172), part, {}}, ctx);
  const std::vector<std::uint8_t> all = read_rows<std::uint8_t>(whole.values, ctx);
  EXPECT_EQ(read_rows<std::uint8_t>(part.values, ctx),
            std::vector<std::uint8_t>(all.begin() + 128 * e.columns, all.end()));
}

struct Product {
  std::int64_t m, n, k;
};
constexpr Product kProducts[] = {{1, 8, 16},      {128, 128, 128}, {64, 136, 384}, {130, 72, 300},
                                 {60, 200, 1000}, {257, 128, 40},  {16, 264, 520}, {300, 200, 256}};

// More tiles than a GPU has SMs, for large and for small tiles.
constexpr Product kLargeProducts[] = {{4096, 2048, 128}, {2048, 2304, 256}};

std::vector<Product> products(Backend backend) {
  std::vector<Product> all(std::begin(kProducts), std::end(kProducts));
  if (backend == Backend::cuda) all.insert(all.end(), std::begin(kLargeProducts), std::end(kLargeProducts));
  return all;
}

// Tensor cores cut off each term of a sum about 13 bits below the top of the largest one (DeepSeek-V3, section 3.5.2).
struct Bounds {
  double relative, of_terms;
};

// Compares each element with its value in float64, in as many rows as the time of a test allows; `times` as many
// products were added.
void expect_product(const Values& got, const Values& a, const Values& b, const Product& p, const Bounds& bounds,
                    double times = 1) {
  ASSERT_EQ(std::ssize(got), p.m * p.n);
  const std::int64_t step = 1 + p.m * p.n * p.k / (1 << 25);
  for (std::int64_t m = 0; m < p.m; m += step)
    for (std::int64_t n = 0; n < p.n; ++n) {
      double sum = 0, magnitude = 0;
      for (std::int64_t k = 0; k < p.k; ++k) {
        const double term = a[static_cast<std::size_t>(m * p.k + k)] * b[static_cast<std::size_t>(n * p.k + k)];
        sum += times * term, magnitude += times * std::abs(term);
      }
      const double element = got[static_cast<std::size_t>(m * p.n + n)];
      ASSERT_LE(std::abs(element - sum), bounds.relative * std::abs(sum) + bounds.of_terms * magnitude)
          << "row " << m << ", column " << n << ": " << element << ", expected " << sum;
    }
}

class Fp8Products : public Fp8 {
 protected:
  Fp8Matrix quantize(const Values& x, std::int64_t rows, std::int64_t columns, Fp8Blocks blocks,
                     const ExecContext& ctx) const {
    const Fp8Matrix m = empty_fp8(rows, columns, blocks, ctx);
    quantize_fp8_kernel({make_tensor({rows, columns}, DType::f32, x, ctx), m, {}}, ctx);
    return m;
  }
  static double of_terms() { return GetParam().backend == Backend::cpu ? 1e-5 : 2e-3; }
};
INSTANTIATE_TEST_SUITE_P(Cpu, Fp8Products, testing::Values(Target{}), testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Gpu, Fp8Products, testing::Values(Target{Backend::cuda}), testing::PrintToStringParamName());

// Calls f with every kernel of the device that can compute the product.
template <class F>
void with_each_kernel(const MatmulFp8& product, const ExecContext& ctx, const F& f) {
  int count = 0;
  for (const auto& c : matmul_fp8_kernel.candidates(ctx.stream.device().backend)) {
    if (c.supports && !c.supports(product, ctx)) continue;
    SCOPED_TRACE(c.name);
    EXPECT_NO_THROW(f(c.fn));
    ++count;
  }
  EXPECT_GT(count, 0) << "no kernel";
}

TEST_P(Fp8Products, WithAWeightAreThoseOfTheQuantizedOperands) {
  for (const Product& p : products(GetParam().backend)) {
    SCOPED_TRACE(str(p.m, " x ", p.n, " x ", p.k));
    const ExecContext ctx = context();
    const Values a = planted({p.m, p.k}, DType::f32, true), b = random_values("b", p.n * p.k, 0.02);
    const Values left = quantized(a, {p.m, p.k}, 1, kFp8Block).decoded;
    const Values right = quantized(b, {p.n, p.k}, kFp8Block, kFp8Block).decoded;
    MatmulFp8 product{quantize(a, p.m, p.k, Fp8Blocks::rows, ctx), quantize(b, p.n, p.k, Fp8Blocks::squares, ctx),
                      ctx.empty({p.m, p.n}, DType::bf16)};
    with_each_kernel(product, ctx, [&](const auto& run) {
      product.c = ctx.empty({p.m, p.n}, DType::bf16);
      run(product, ctx);
      const Values got = read_values(product.c, ctx);
      expect_product(got, left, right, p, {1.0 / 256, of_terms()});
      run(product, ctx);
      EXPECT_EQ(read_values(product.c, ctx), got) << "two runs differ";
    });
  }
}

TEST_P(Fp8Products, OfRowsAddUpInF32) {
  for (const Product& p : products(GetParam().backend)) {
    SCOPED_TRACE(str(p.m, " x ", p.n, " x ", p.k));
    const ExecContext ctx = context();
    const Values a = planted({p.m, p.k}, DType::f32, true), b = planted({p.n, p.k}, DType::f32, true);
    const Values left = quantized(a, {p.m, p.k}, 1, kFp8Block).decoded;
    const Values right = quantized(b, {p.n, p.k}, 1, kFp8Block).decoded;
    MatmulFp8 product{quantize(a, p.m, p.k, Fp8Blocks::rows, ctx), quantize(b, p.n, p.k, Fp8Blocks::rows, ctx),
                      ctx.empty({p.m, p.n})};
    with_each_kernel(product, ctx, [&](const auto& run) {
      product.c = ctx.empty({p.m, p.n});
      product.accumulate = false;
      run(product, ctx);
      expect_product(read_values(product.c, ctx), left, right, p, {1e-6, of_terms()});
      product.accumulate = true;
      run(product, ctx);
      expect_product(read_values(product.c, ctx), left, right, p, {1e-6, of_terms()}, 2);
    });
  }
}

TEST_P(Fp8Products, KeepNaN) {
  const ExecContext ctx = context();
  const Product p{256, 256, 256};
  Values a = planted({p.m, p.k}, DType::f32, true);
  a[3 * 256 + 5] = kNaN, a[200 * 256 + 255] = kInf;
  const Values b = random_values("b", p.n * p.k, 0.02);
  const Tensor c = ctx.empty({p.m, p.n}, DType::bf16);
  matmul_fp8_kernel({quantize(a, p.m, p.k, Fp8Blocks::rows, ctx), quantize(b, p.n, p.k, Fp8Blocks::squares, ctx), c},
                    ctx);
  const Values got = read_values(c, ctx);
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(std::isnan(got[i]), i / 256 == 3 || i / 256 == 200) << "row " << i / 256;
}

TEST(Fp8Arguments, AreChecked) {
  const ExecContext ctx{Stream::cpu(1)};
  const Fp8Matrix rows = empty_fp8(8, 16, Fp8Blocks::rows, ctx), squares = empty_fp8(8, 16, Fp8Blocks::squares, ctx);
  EXPECT_THROW(quantize_fp8_kernel({ctx.zeros({8, 17}), rows, {}}, ctx), Error);
  EXPECT_THROW(quantize_fp8_kernel({ctx.zeros({8, 16}), rows, empty_fp8(16, 8, Fp8Blocks::squares, ctx)}, ctx), Error);
  EXPECT_THROW(matmul_fp8_kernel({squares, rows, ctx.zeros({8, 8})}, ctx), Error);
  EXPECT_THROW(matmul_fp8_kernel({rows, rows, ctx.zeros({8, 9})}, ctx), Error);
  EXPECT_THROW(matmul_fp8_kernel({rows, rows, ctx.zeros({8, 8}, DType::bf16), true}, ctx), Error);
}

}  // namespace
}  // namespace ring::test
