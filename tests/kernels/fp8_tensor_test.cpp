// Tensorwise FP8 against definitions in float64: quantization with one scale, and products.
#include "tests/kernels/fp8_checks.h"

namespace ring::test {
namespace {

double max_of(const Values& x) {
  double max = 0;
  for (const double v : x) max = std::isnan(v) ? max : std::max(max, std::abs(v));
  return max;
}

// Returns the codes of x with the scale of this maximum; larger magnitudes saturate.
std::vector<std::uint8_t> codes_of(const Values& x, double max) {
  std::vector<std::uint8_t> codes;
  const double scale = std::isfinite(max) ? scale_of(max) : kNaN;
  for (const double v : x) codes.push_back(nearest_code(v / scale));
  return codes;
}

class Fp8Tensor : public Fp8 {
 protected:
  // Returns arguments with both outputs for a matrix of these extents, and a maximum.
  static QuantizeFp8 quantizer(const Tensor& x, double max, bool given, const ExecContext& ctx) {
    return {x,
            empty_fp8(x.dim(0), x.dim(1), Fp8Blocks::tensor, ctx),
            empty_fp8(x.dim(1), x.dim(0), Fp8Blocks::tensor, ctx),
            {make_tensor({1}, DType::f32, {max}, ctx), given}};
  }
  static void expect_outputs(const QuantizeFp8& q, const Values& x, double max, const ExecContext& ctx) {
    const std::vector<float> scale = {static_cast<float>(std::isfinite(max) ? scale_of(max) : 1)};
    const std::vector<std::uint8_t> codes = codes_of(x, max);
    EXPECT_EQ(read(q.out, ctx), (HostFp8{codes, scale}));
    EXPECT_EQ(read(q.transposed, ctx), (HostFp8{transposed(codes, q.x.dim(0), q.x.dim(1)), scale}));
  }
  void expect_quantized(const Extents& e, const Values& x, const ExecContext& ctx) const {
    const QuantizeFp8 q = quantizer(make(e, x, ctx), 0, false, ctx);
    quantize_fp8_kernel(q, ctx);
    EXPECT_EQ(read_values(q.max.value, ctx), Values{max_of(x)});
    expect_outputs(q, x, max_of(x), ctx);
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, Fp8Tensor, testing::Values(Target{}, Target{Backend::cpu, DType::bf16}),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Gpu, Fp8Tensor, testing::Values(Target{Backend::cuda}, Target{Backend::cuda, DType::bf16}),
                         testing::PrintToStringParamName());

TEST_P(Fp8Tensor, HasOneScale) {
  for (const Extents& e : kExtents) {
    SCOPED_TRACE(str(e.rows, " x ", e.columns));
    const ExecContext ctx = context();
    Values x = planted(e, GetParam().dtype, true);
    expect_quantized(e, x, ctx);
    if (x.size() < 100) continue;
    x[7] = kNaN, x[8] = 0, x[9] = -0.0, x[10] = std::ldexp(1, -126);
    expect_quantized(e, x, ctx);
  }
}

TEST_P(Fp8Tensor, QuantizesZerosAndSubnormalNumbers) {
  const ExecContext ctx = context();
  const Extents e{130, 136};
  Values x = planted(e, GetParam().dtype, true);
  for (const int exponent : {-124, -126, -130, -200}) {
    SCOPED_TRACE(exponent);
    Values tiny;
    for (const double v : x) {
      const auto scaled = static_cast<float>(std::ldexp(v, exponent));
      tiny.push_back(GetParam().dtype == DType::bf16 ? to_float(to_bf16(scaled)) : scaled);
    }
    ASSERT_EQ(max_of(tiny) == 0, exponent == -200);
    expect_quantized(e, tiny, ctx);
  }
}

TEST_P(Fp8Tensor, BecomesNaNWithAnInfinity) {
  const ExecContext ctx = context();
  const Extents e{200, 136};
  for (const double infinity : {kInf, -kInf}) {
    Values x = planted(e, GetParam().dtype, true);
    x[150 * 136 + 131] = infinity;
    expect_quantized(e, x, ctx);
  }
}

// A given maximum is used as is if it is large; values saturate if it is small, and are NaN if it is not finite.
TEST_P(Fp8Tensor, TakesAGivenMaximum) {
  const ExecContext ctx = context();
  const Extents e{130, 136};
  Values x = planted(e, GetParam().dtype, true);
  x[0] = kNaN, x[1] = kInf, x[140] = -kInf, x[141] = std::ldexp(-1.5, 120);
  for (const double max : {1.0, 3.0, std::ldexp(1, -130), std::ldexp(1.5, 127), 0.0, kInf, kNaN}) {
    SCOPED_TRACE(max);
    const QuantizeFp8 q = quantizer(make(e, x, ctx), max, true, ctx);
    quantize_fp8_kernel(q, ctx);
    expect_outputs(q, x, max, ctx);
  }
}

// Parts of any size have the bytes of the whole if their maxima are combined.
TEST_P(Fp8Tensor, QuantizesPartsLikeTheWhole) {
  const ExecContext ctx = context();
  const Extents e{300, 136};
  const Values values = planted(e, GetParam().dtype, true);
  const Tensor x = make(e, values, ctx), max = ctx.zeros({1});
  const std::pair<std::int64_t, std::int64_t> parts[] = {{0, 7}, {7, 130}, {137, 163}};
  for (const auto& [first, count] : parts) quantize_fp8_kernel({x.narrow(0, first, count), {}, {}, {max}}, ctx);
  EXPECT_EQ(read_values(max, ctx), Values{max_of(values)});
  const std::vector<std::uint8_t> whole = codes_of(values, max_of(values));
  for (const auto& [first, count] : parts) {
    const Fp8Matrix out = empty_fp8(count, e.columns, Fp8Blocks::tensor, ctx);
    quantize_fp8_kernel({x.narrow(0, first, count), out, {}, {max, true}}, ctx);
    EXPECT_EQ(
        read_rows<std::uint8_t>(out.values, ctx),
        std::vector<std::uint8_t>(whole.begin() + first * e.columns, whole.begin() + (first + count) * e.columns));
  }
}

class Fp8TensorProducts : public Fp8Tensor {
 protected:
  struct Operand {
    Fp8Matrix matrix;
    Values decoded;
  };
  static Operand operand(const Values& x, std::int64_t rows, std::int64_t columns, const ExecContext& ctx) {
    const QuantizeFp8 q = quantizer(make_tensor({rows, columns}, DType::f32, x, ctx), 0, false, ctx);
    quantize_fp8_kernel(q, ctx);
    Values decoded;
    const double max = max_of(x), scale = scale_of(max);
    for (const std::uint8_t code : codes_of(x, max)) decoded.push_back(e4m3_value(code) * scale);
    return {q.out, decoded};
  }
  static double of_terms() { return GetParam().backend == Backend::cpu ? 1e-5 : 2e-3; }
};
INSTANTIATE_TEST_SUITE_P(Cpu, Fp8TensorProducts, testing::Values(Target{}), testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Gpu, Fp8TensorProducts, testing::Values(Target{Backend::cuda}),
                         testing::PrintToStringParamName());

TEST_P(Fp8TensorProducts, AreThoseOfTheQuantizedOperands) {
  for (const Product& p : products(GetParam().backend)) {
    SCOPED_TRACE(str(p.m, " x ", p.n, " x ", p.k));
    const ExecContext ctx = context();
    const Operand a = operand(planted({p.m, p.k}, DType::f32, true), p.m, p.k, ctx);
    const Operand b = operand(random_values("b", p.n * p.k, 0.02), p.n, p.k, ctx);
    for (const DType type : {DType::bf16, DType::f32}) {
      MatmulFp8 product{a.matrix, b.matrix, ctx.empty({p.m, p.n}, type)};
      with_each_kernel(matmul_fp8_kernel, product, ctx, [&](const auto& run) {
        product.c = ctx.empty({p.m, p.n}, type), product.accumulate = false;
        run(product, ctx);
        const Bounds bounds{type == DType::bf16 ? 1.0 / 256 : 1e-6, of_terms()};
        const Values got = read_values(product.c, ctx);
        expect_product(got, a.decoded, b.decoded, p, bounds);
        run(product, ctx);
        EXPECT_EQ(read_values(product.c, ctx), got) << "two runs differ";
        if (type != DType::f32) return;
        product.accumulate = true;
        run(product, ctx);
        expect_product(read_values(product.c, ctx), a.decoded, b.decoded, p, bounds, 2);
      });
    }
  }
}

// Sums on tensor cores alone would lose a fifth of these terms.
TEST_P(Fp8TensorProducts, KeepTheirPrecisionInLongSums) {
  const ExecContext ctx = context();
  const Product p{64, 64, 16384};
  Values x = random_values("x", p.m * p.k), y = random_values("y", p.n * p.k);
  for (Values* v : {&x, &y})
    for (double& element : *v) element = static_cast<float>(1 + std::abs(element));
  const Operand a = operand(x, p.m, p.k, ctx), b = operand(y, p.n, p.k, ctx);
  MatmulFp8 product{a.matrix, b.matrix, ctx.empty({p.m, p.n})};
  with_each_kernel(matmul_fp8_kernel, product, ctx, [&](const auto& run) {
    product.c = ctx.empty({p.m, p.n});
    run(product, ctx);
    expect_product(read_values(product.c, ctx), a.decoded, b.decoded, p, {0, 2e-3});
  });
}

TEST_P(Fp8TensorProducts, KeepNaN) {
  const ExecContext ctx = context();
  const Product p{256, 256, 256};
  Values x = planted({p.m, p.k}, DType::f32, true);
  const Operand b = operand(random_values("b", p.n * p.k, 0.02), p.n, p.k, ctx);
  x[3 * 256 + 5] = kNaN;
  for (const bool infinite : {false, true}) {
    if (infinite) x[200 * 256 + 255] = kInf;
    const QuantizeFp8 q = quantizer(make_tensor({p.m, p.k}, DType::f32, x, ctx), 0, false, ctx);
    quantize_fp8_kernel(q, ctx);
    MatmulFp8 product{q.out, b.matrix, {}};
    product.c = ctx.empty({p.m, p.n}, DType::bf16);
    with_each_kernel(matmul_fp8_kernel, product, ctx, [&](const auto& run) {
      product.c = ctx.empty({p.m, p.n}, DType::bf16);
      run(product, ctx);
      const Values got = read_values(product.c, ctx);
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(std::isnan(got[i]), infinite || i / 256 == 3) << "row " << i / 256;
    });
  }
}

TEST(Fp8TensorArguments, AreChecked) {
  const ExecContext ctx{Stream::cpu(1)};
  const Fp8Matrix one = empty_fp8(8, 16, Fp8Blocks::tensor, ctx), rows = empty_fp8(8, 16, Fp8Blocks::rows, ctx);
  const Tensor x = ctx.zeros({8, 16}), max = ctx.zeros({1});
  EXPECT_NO_THROW(quantize_fp8_kernel({x, one, {}, {max}}, ctx));
  EXPECT_THROW(quantize_fp8_kernel({x, one, {}}, ctx), Error);
  EXPECT_THROW(quantize_fp8_kernel({x, rows, {}, {max}}, ctx), Error);
  EXPECT_THROW(quantize_fp8_kernel({x, one, {}, {ctx.zeros({2})}}, ctx), Error);
  EXPECT_THROW(quantize_fp8_kernel({x, one, {}, {ctx.zeros({1}, DType::bf16)}}, ctx), Error);
  EXPECT_THROW(quantize_fp8_kernel({x, one, empty_fp8(16, 8, Fp8Blocks::rows, ctx), {max}}, ctx), Error);
  EXPECT_NO_THROW(matmul_fp8_kernel({one, one, ctx.zeros({8, 8})}, ctx));
  EXPECT_THROW(matmul_fp8_kernel({one, rows, ctx.zeros({8, 8})}, ctx), Error);
  EXPECT_THROW(matmul_fp8_kernel({rows, one, ctx.zeros({8, 8})}, ctx), Error);
  EXPECT_THROW(matmul_fp8_kernel({one, one, ctx.zeros({8, 8}, DType::bf16), true}, ctx), Error);
  const Fp8Matrix odd = empty_fp8(7, 16, Fp8Blocks::tensor, ctx);
  EXPECT_THROW(matmul_fp8_kernel({one, odd, ctx.zeros({8, 7})}, ctx), Error) << "rows of 28 bytes";
  EXPECT_NO_THROW(matmul_fp8_kernel({one, odd, ctx.zeros({8, 8}).narrow(1, 0, 7)}, ctx));
}

}  // namespace
}  // namespace ring::test
