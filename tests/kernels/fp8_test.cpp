// FP8 against definitions in float64: e4m3, blockwise quantization, products of quantized matrices, and ops that write
// their result in FP8.
#include "kernels/fp8.h"

#include <cmath>
#include <limits>

#include "kernels/fp8_producers.h"
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

// Calls f with every kernel of the slot on the device that supports the arguments.
template <class Args, class F>
void with_each_kernel(const Kernel<Args>& slot, const Args& args, const ExecContext& ctx, const F& f) {
  int count = 0;
  for (const auto& c : slot.candidates(ctx.stream.device().backend)) {
    if (c.supports && !c.supports(args, ctx)) continue;
    SCOPED_TRACE(c.name);
    EXPECT_NO_THROW(f(c.fn));
    ++count;
  }
  EXPECT_GT(count, 0) << "no kernel";
}

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

TEST_P(Fp8Products, WithAWeightAreThoseOfTheQuantizedOperands) {
  for (const Product& p : products(GetParam().backend)) {
    SCOPED_TRACE(str(p.m, " x ", p.n, " x ", p.k));
    const ExecContext ctx = context();
    const Values a = planted({p.m, p.k}, DType::f32, true), b = random_values("b", p.n * p.k, 0.02);
    const Values left = quantized(a, {p.m, p.k}, 1, kFp8Block).decoded;
    const Values right = quantized(b, {p.n, p.k}, kFp8Block, kFp8Block).decoded;
    MatmulFp8 product{quantize(a, p.m, p.k, Fp8Blocks::rows, ctx), quantize(b, p.n, p.k, Fp8Blocks::squares, ctx),
                      ctx.empty({p.m, p.n}, DType::bf16)};
    with_each_kernel(matmul_fp8_kernel, product, ctx, [&](const auto& run) {
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
    with_each_kernel(matmul_fp8_kernel, product, ctx, [&](const auto& run) {
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

// The values of a matrix with their scales, by row.
Values decoded(const Fp8Matrix& m, const ExecContext& ctx) {
  const HostFp8 host = read(m, ctx);
  const std::int64_t rows = m.values.dim(0), columns = m.values.dim(1);
  Values v;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      v.push_back(e4m3_value(host.values[static_cast<std::size_t>(r * columns + c)]) *
                  host.scales[static_cast<std::size_t>(c / kFp8Block * rows + r)]);
  return v;
}

// Compares an output of a producer with the op's result in float64. e4m3 keeps 3 bits, or multiples of 2^-9 scales; a
// block's largest element is at least 1.75 * 2^7 scales. `error`: of the op's own arithmetic.
void expect_fp8_of(const Fp8Matrix& got, const Values& want, double error, const ExecContext& ctx) {
  const std::int64_t rows = got.values.dim(0), columns = got.values.dim(1);
  const Values values = decoded(got, ctx);
  ASSERT_EQ(values.size(), want.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t first = 0; first < columns; first += kFp8Block) {
      const auto begin = static_cast<std::size_t>(r * columns + first);
      const auto end = static_cast<std::size_t>(r * columns + std::min(first + kFp8Block, columns));
      double max = 0;
      for (std::size_t i = begin; i < end; ++i) max = std::isnan(want[i]) ? max : std::max(max, std::abs(want[i]));
      for (std::size_t i = begin; i < end; ++i) {
        if (std::isnan(want[i])) {
          ASSERT_TRUE(std::isnan(values[i])) << "row " << r << ", element " << i;
          continue;
        }
        const double bound = std::abs(want[i]) * (1.0 / 16 + error) + max * (1.0 / (224 * 1024) + error);
        ASSERT_LE(std::abs(values[i] - want[i]), bound) << "row " << r << ", element " << i << ", expected " << want[i];
      }
    }
}

class Fp8Producers : public Fp8 {
 protected:
  // Random elements of the target's type with a NaN.
  static Values elements(const std::string& name, const Extents& e, double size) {
    Values x = random_values(name, e.rows * e.columns, size);
    for (double& v : x)
      v = GetParam().dtype == DType::bf16 ? to_float(to_bf16(static_cast<float>(v))) : static_cast<float>(v);
    return x;
  }
  // Arithmetic in f32, rounding to the target's type, and two products instead of one in the reference.
  static double error() { return GetParam().dtype == DType::bf16 ? 1.0 / 200 : 1e-5; }

  // Runs every kernel of the slot with new outputs, compares them with the result [N,C] in float64, and kernels that
  // promise the same bytes with each other.
  template <class Args, class F>
  void expect_result(const Kernel<Args>& slot, Args args, const Extents& e, const Values& want, const ExecContext& ctx,
                     const F& then) const {
    with_each_kernel(slot, args, ctx, [&](const auto& run) {
      args.out = empty_fp8(e.rows, e.columns, Fp8Blocks::rows, ctx);
      args.transposed = empty_fp8(e.columns, e.rows, Fp8Blocks::rows, ctx);
      run(args, ctx);
      expect_fp8_of(args.out, want, error(), ctx);
      expect_fp8_of(args.transposed, transposed(want, e.rows, e.columns), error(), ctx);
      then(args);
      Args alone = args;
      alone.out = {}, alone.transposed = empty_fp8(e.columns, e.rows, Fp8Blocks::rows, ctx);
      run(alone, ctx);
      EXPECT_EQ(read(alone.transposed, ctx), read(args.transposed, ctx));
    });
  }
  template <class Args>
  void expect_same_bytes(const Kernel<Args>& slot, const Args& args, const Extents& e, const Values& want,
                         const ExecContext& ctx) const {
    std::vector<HostFp8> outputs;
    expect_result(slot, args, e, want, ctx, [&](const Args& done) {
      outputs.push_back(read(done.out, ctx)), outputs.push_back(read(done.transposed, ctx));
      EXPECT_EQ(outputs.end()[-2], outputs[0]);
      EXPECT_EQ(outputs.end()[-1], outputs[1]);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, Fp8Producers, testing::Values(Target{}), testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Gpu, Fp8Producers, testing::Values(Target{Backend::cuda}, Target{Backend::cuda, DType::bf16}),
                         testing::PrintToStringParamName());

constexpr Extents kProduced[] = {{1, 8}, {5, 130}, {130, 16}, {200, 300}, {256, 256}, {257, 1032}};

TEST_P(Fp8Producers, NormRows) {
  for (const Extents& e : kProduced) {
    SCOPED_TRACE(str(e.rows, " x ", e.columns));
    const ExecContext ctx = context();
    Values x = elements("x", e, 3), w = elements("w", {1, e.columns}, 1), want;
    if (e.rows > 100) x[static_cast<std::size_t>(77 * e.columns + 3)] = kNaN;
    Values rstds;
    for (std::int64_t r = 0; r < e.rows; ++r) {
      double squares = 0;
      for (std::int64_t c = 0; c < e.columns; ++c)
        squares += std::pow(x[static_cast<std::size_t>(r * e.columns + c)], 2);
      rstds.push_back(1 / std::sqrt(squares / static_cast<double>(e.columns) + 1e-5));
      for (std::int64_t c = 0; c < e.columns; ++c)
        want.push_back(x[static_cast<std::size_t>(r * e.columns + c)] * rstds.back() * w[static_cast<std::size_t>(c)]);
    }
    const RmsNormFp8 args{make(e, x, ctx), make_tensor({e.columns}, GetParam().dtype, w, ctx), ctx.empty({e.rows})};
    expect_result(rms_norm_fp8_kernel, args, e, want, ctx, [&](const RmsNormFp8& done) {
      const Values rstd = read_values(done.rstd, ctx);
      for (std::size_t r = 0; r < rstds.size(); ++r)
        EXPECT_TRUE(std::isnan(rstds[r]) ? std::isnan(rstd[r]) : std::abs(rstd[r] - rstds[r]) < 1e-6 * rstds[r]) << r;
    });
  }
}

// With the rstd that the kernel found, its bytes are exactly those of the definition in f32.
TEST_P(Fp8Producers, NormRowsToTheBytesOfTheirDefinition) {
  const ExecContext ctx = context();
  const Extents e{257, 264};
  const Values x = elements("x", e, 3), w = elements("w", {1, e.columns}, 1);
  const RmsNormFp8 args{make(e, x, ctx), make_tensor({e.columns}, GetParam().dtype, w, ctx), ctx.empty({e.rows}),
                        empty_fp8(e.rows, e.columns, Fp8Blocks::rows, ctx)};
  with_each_kernel(rms_norm_fp8_kernel, args, ctx, [&](const auto& run) {
    run(args, ctx);
    const Values rstd = read_values(args.rstd, ctx);
    Values y;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t r = i / static_cast<std::size_t>(e.columns), c = i % static_cast<std::size_t>(e.columns);
      const float product = static_cast<float>(x[i]) * static_cast<float>(rstd[r]);
      const float v = product * static_cast<float>(w[c]);
      y.push_back(GetParam().dtype == DType::bf16 ? to_float(to_bf16(v)) : v);
    }
    const Reference want = quantized(y, e, 1, kFp8Block);
    EXPECT_EQ(read(args.out, ctx),
              (HostFp8{want.values, floats(transposed(want.scales, e.rows, fp8_blocks(e.columns)))}));
  });
}

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

TEST_P(Fp8Producers, GateRows) {
  for (const Extents& e : kProduced) {
    SCOPED_TRACE(str(e.rows, " x ", e.columns));
    const ExecContext ctx = context();
    Values x = elements("x", {e.rows, 2 * e.columns}, 4), want;
    if (e.rows > 100) x[static_cast<std::size_t>(77 * 2 * e.columns + 3)] = kNaN;
    for (std::int64_t i = 0; i < e.rows * e.columns; ++i) {
      const double* gate = &x[static_cast<std::size_t>(i / e.columns * 2 * e.columns + i % e.columns)];
      want.push_back(gate[0] * logistic(gate[0]) * gate[e.columns]);
    }
    expect_same_bytes(swiglu_fp8_kernel, SwiGluFp8{make({e.rows, 2 * e.columns}, x, ctx)}, e, want, ctx);
  }
}

TEST_P(Fp8Producers, GiveGradientsOfGatedRows) {
  for (const Extents& e : kProduced) {
    SCOPED_TRACE(str(e.rows, " x ", e.columns));
    const ExecContext ctx = context();
    const Extents both{e.rows, 2 * e.columns};
    const Values x = elements("x", both, 4);
    Values dy = elements("dy", e, 0.1), want(x.size());
    if (e.rows > 100) dy[static_cast<std::size_t>(77 * e.columns + 3)] = kNaN;
    for (std::int64_t i = 0; i < e.rows * e.columns; ++i) {
      const auto at = static_cast<std::size_t>(i / e.columns * 2 * e.columns + i % e.columns);
      const auto width = static_cast<std::size_t>(e.columns);
      const double gate = x[at], up = x[at + width], d = dy[static_cast<std::size_t>(i)], s = logistic(gate);
      want[at] = d * up * s * (1 + gate * (1 - s)), want[at + width] = d * gate * s;
    }
    expect_same_bytes(swiglu_backward_fp8_kernel, SwiGluBackwardFp8{make(both, x, ctx), make(e, dy, ctx)}, both, want,
                      ctx);
  }
}

struct Heads {
  std::int64_t count, width, others;  // others: columns behind the heads
};

// Compares every kernel with the definition of RoPE in float64, and its bytes with those of the first one.
TEST_P(Fp8Producers, RotateHeads) {
  for (const Heads& h : {Heads{3, 128, 128}, Heads{4, 64, 40}, Heads{5, 24, 9}, Heads{2, 160, 0}, Heads{0, 16, 136}}) {
    const std::int64_t rows = 200, half = h.width / 2;
    const Extents e{rows, h.count * h.width + h.others};
    SCOPED_TRACE(str(h.count, " heads of ", h.width, ", ", h.others, " others"));
    const ExecContext ctx = context();
    Values x = elements("x", e, 2), want = x, inv_freq;
    if (h.count > 0) x[static_cast<std::size_t>(77 * e.columns + 3)] = kNaN;
    for (std::int64_t i = 0; i < half; ++i)
      inv_freq.push_back(static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half))));
    std::vector<std::int32_t> positions;
    for (std::int32_t r = 0; r < rows; ++r) positions.push_back(r * 997 % 70001);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < h.count * half; ++i) {
        const auto low = static_cast<std::size_t>(r * e.columns + i / half * h.width + i % half);
        const auto high = low + static_cast<std::size_t>(half);
        const double angle = -positions[static_cast<std::size_t>(r)] * inv_freq[static_cast<std::size_t>(i % half)];
        want[low] = x[low] * std::cos(angle) - x[high] * std::sin(angle);
        want[high] = x[high] * std::cos(angle) + x[low] * std::sin(angle);
      }
    RopeFp8 args{.x = make(e, x, ctx),
                 .positions = from_host(positions, ctx.stream),
                 .inv_freq = make_tensor({half}, DType::f32, inv_freq, ctx),
                 .heads = h.count,
                 .inverse = true};
    std::vector<HostFp8> outputs;
    with_each_kernel(rope_fp8_kernel, args, ctx, [&](const auto& run) {
      args.x = make(e, x, ctx);  // a kernel may overwrite it
      args.out = empty_fp8(e.rows, e.columns, Fp8Blocks::rows, ctx);
      args.transposed = empty_fp8(e.columns, e.rows, Fp8Blocks::rows, ctx);
      run(args, ctx);
      expect_fp8_of(args.out, want, error(), ctx);
      expect_fp8_of(args.transposed, transposed(want, e.rows, e.columns), error(), ctx);
      outputs.push_back(read(args.out, ctx)), outputs.push_back(read(args.transposed, ctx));
      EXPECT_EQ(outputs.end()[-2], outputs[0]);
      EXPECT_EQ(outputs.end()[-1], outputs[1]);
    });
  }
}

TEST(Fp8Arguments, AreChecked) {
  const ExecContext ctx{Stream::cpu(1)};
  const Fp8Matrix rows = empty_fp8(8, 16, Fp8Blocks::rows, ctx), squares = empty_fp8(8, 16, Fp8Blocks::squares, ctx);
  EXPECT_THROW(quantize_fp8_kernel({ctx.zeros({8, 17}), rows, {}}, ctx), Error);
  EXPECT_THROW(quantize_fp8_kernel({ctx.zeros({8, 16}), rows, empty_fp8(16, 8, Fp8Blocks::squares, ctx)}, ctx), Error);
  EXPECT_THROW(matmul_fp8_kernel({squares, rows, ctx.zeros({8, 8})}, ctx), Error);
  EXPECT_THROW(matmul_fp8_kernel({rows, rows, ctx.zeros({8, 9})}, ctx), Error);
  EXPECT_THROW(matmul_fp8_kernel({rows, rows, ctx.zeros({8, 8}, DType::bf16), true}, ctx), Error);
  EXPECT_THROW(rms_norm_fp8_kernel({ctx.zeros({8, 16}), ctx.zeros({16}), ctx.zeros({8}), squares}, ctx), Error);
  EXPECT_THROW(rms_norm_fp8_kernel({ctx.zeros({8, 16}), ctx.zeros({15}), ctx.zeros({8}), rows}, ctx), Error);
  EXPECT_THROW(swiglu_fp8_kernel({ctx.zeros({8, 16}), rows}, ctx), Error);
  EXPECT_THROW(swiglu_backward_fp8_kernel({ctx.zeros({8, 16}), ctx.zeros({8, 9}), rows}, ctx), Error);
  const Tensor positions = ctx.zeros({8}, DType::i32), inv_freq = ctx.zeros({4});
  EXPECT_NO_THROW(rope_fp8_kernel({ctx.zeros({8, 16}), positions, inv_freq, 2, true, rows}, ctx));
  EXPECT_THROW(rope_fp8_kernel({ctx.zeros({8, 16}), positions, inv_freq, 3, true, rows}, ctx), Error);
  EXPECT_THROW(rope_fp8_kernel({ctx.zeros({8, 16}), ctx.zeros({7}, DType::i32), inv_freq, 2, true, rows}, ctx), Error);
}

}  // namespace
}  // namespace ring::test
