// FP8 against definitions in float64: e4m3, blockwise quantization and products of blockwise quantized matrices.
#include "kernels/fp8_producers.h"
#include "tests/kernels/fp8_checks.h"

namespace ring::test {
namespace {

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

INSTANTIATE_TEST_SUITE_P(Cpu, Fp8, testing::Values(Target{}, Target{Backend::cpu, DType::bf16}),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Gpu, Fp8, testing::Values(Target{Backend::cuda}, Target{Backend::cuda, DType::bf16}),
                         testing::PrintToStringParamName());

TEST_P(Fp8, QuantizesRowsAndTheirTranspose) {
  for (const Extents& e : kExtents) {
    SCOPED_TRACE(str(e.rows, " x ", e.columns));
    const ExecContext ctx = context();
    const Values x = planted(e, GetParam().dtype, false);
    const QuantizeFp8 q{make(e, x, ctx), empty_fp8(e.rows, e.columns, Fp8Blocks::rows, ctx),
                        empty_fp8(e.columns, e.rows, Fp8Blocks::rows, ctx)};
    quantize_fp8_kernel(q, ctx);
    const Quantized by_row = quantized(x, e, 1, kFp8Block), by_column = quantized(x, e, kFp8Block, 1);
    const HostFp8 want{by_row.values, floats(transposed(by_row.scales, e.rows, fp8_blocks(e.columns)))};
    EXPECT_EQ(read(q.out, ctx), want);
    EXPECT_EQ(read(q.transposed, ctx),
              (HostFp8{transposed(by_column.values, e.rows, e.columns), floats(by_column.scales)}));
    const Fp8Matrix alone = empty_fp8(e.rows, e.columns, Fp8Blocks::rows, ctx);
    quantize_fp8_kernel({q.x, alone, {}}, ctx);
    EXPECT_EQ(read(alone, ctx), want);
  }
}

// The blocks of a layer's input: a transpose in square blocks does not change the rows.
TEST_P(Fp8, QuantizesRowsAndATransposeInSquares) {
  for (const Extents& e : kExtents) {
    SCOPED_TRACE(str(e.rows, " x ", e.columns));
    const ExecContext ctx = context();
    const Values x = planted(e, GetParam().dtype, false);
    const QuantizeFp8 q{make(e, x, ctx), empty_fp8(e.rows, e.columns, Fp8Blocks::rows, ctx),
                        empty_fp8(e.columns, e.rows, Fp8Blocks::squares, ctx)};
    quantize_fp8_kernel(q, ctx);
    const Quantized by_row = quantized(x, e, 1, kFp8Block), by_square = quantized(x, e, kFp8Block, kFp8Block);
    EXPECT_EQ(read(q.out, ctx),
              (HostFp8{by_row.values, floats(transposed(by_row.scales, e.rows, fp8_blocks(e.columns)))}));
    const HostFp8 want{transposed(by_square.values, e.rows, e.columns),
                       floats(transposed(by_square.scales, fp8_blocks(e.rows), fp8_blocks(e.columns)))};
    EXPECT_EQ(read(q.transposed, ctx), want);
    const Fp8Matrix alone = empty_fp8(e.columns, e.rows, Fp8Blocks::squares, ctx);
    quantize_fp8_kernel({q.x, {}, alone}, ctx);
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
    const Quantized want = quantized(x, e, kFp8Block, kFp8Block);
    EXPECT_EQ(read(q.out, ctx), (HostFp8{want.values, floats(want.scales)}));
    EXPECT_EQ(read(q.transposed, ctx),
              (HostFp8{transposed(want.values, e.rows, e.columns),
                       floats(transposed(want.scales, fp8_blocks(e.rows), fp8_blocks(e.columns)))}));
  }
}

// A part of a matrix that starts at a multiple of 128 has the same bytes as in the whole.
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

// As above, for square blocks.
TEST_P(Fp8, QuantizesRowsOfSquaresLikeTheWhole) {
  const ExecContext ctx = context();
  const Extents e{300, 144};
  const Tensor x = make(e, planted(e, GetParam().dtype, false), ctx);
  const Fp8Matrix whole = empty_fp8(e.rows, e.columns, Fp8Blocks::squares, ctx);
  const Fp8Matrix parts = empty_fp8(e.rows, e.columns, Fp8Blocks::squares, ctx);
  quantize_fp8_kernel({x, whole, {}}, ctx);
  for (const std::int64_t first : {0, 256, 128}) {
    const std::int64_t rows = std::min(kFp8Block, e.rows - first);
    const Fp8Matrix part{parts.values.narrow(0, first, rows), parts.scales.narrow(0, first / kFp8Block, 1),
                         Fp8Blocks::squares};
    quantize_fp8_kernel({x.narrow(0, first, rows), part, {}}, ctx);
  }
  EXPECT_EQ(read(parts, ctx), read(whole, ctx));
}

TEST_P(Fp8, TransposesSquaresAndTensors) {
  for (const Extents& e : kExtents)
    for (const Fp8Blocks blocks : {Fp8Blocks::squares, Fp8Blocks::tensor}) {
      const bool tensorwise = blocks == Fp8Blocks::tensor;
      SCOPED_TRACE(str(e.rows, " x ", e.columns, tensorwise ? ", tensor" : ", squares"));
      const ExecContext ctx = context();
      const Fp8Matrix x = empty_fp8(e.rows, e.columns, blocks, ctx), out = empty_fp8(e.columns, e.rows, blocks, ctx);
      const Fp8Max max{tensorwise ? ctx.zeros({1}) : Tensor{}};
      quantize_fp8_kernel({make(e, planted(e, GetParam().dtype, tensorwise), ctx), x, {}, max}, ctx);
      transpose_fp8_kernel({x, out}, ctx);
      const HostFp8 from = read(x, ctx), to = read(out, ctx);
      EXPECT_EQ(to.values, transposed(from.values, e.rows, e.columns));
      EXPECT_EQ(to.scales,
                tensorwise ? from.scales : transposed(from.scales, fp8_blocks(e.rows), fp8_blocks(e.columns)));
    }
  const ExecContext ctx = context();
  const Fp8Matrix rows = empty_fp8(16, 32, Fp8Blocks::rows, ctx), square = empty_fp8(32, 16, Fp8Blocks::squares, ctx);
  EXPECT_THROW(transpose_fp8_kernel({rows, empty_fp8(32, 16, Fp8Blocks::rows, ctx)}, ctx), Error);
  EXPECT_THROW(transpose_fp8_kernel({square, square}, ctx), Error);
}

class Fp8Products : public Fp8 {
 protected:
  Fp8Matrix quantize(const Values& x, std::int64_t rows, std::int64_t columns, Fp8Blocks blocks,
                     const ExecContext& ctx) const {
    const Fp8Matrix m = empty_fp8(rows, columns, blocks, ctx);
    const Fp8Max max{blocks == Fp8Blocks::tensor ? ctx.zeros({1}) : Tensor{}};
    quantize_fp8_kernel({make_tensor({rows, columns}, DType::f32, x, ctx), m, {}, max}, ctx);
    return m;
  }
  static Values floats_of(Values v) {
    for (double& x : v) x = static_cast<float>(x);
    return v;
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

TEST_P(Fp8Products, AddUpInF32) {
  for (const Product& p : products(GetParam().backend)) {
    SCOPED_TRACE(str(p.m, " x ", p.n, " x ", p.k));
    const ExecContext ctx = context();
    const Values a = planted({p.m, p.k}, DType::f32, true), b = planted({p.n, p.k}, DType::f32, true);
    const Values left = quantized(a, {p.m, p.k}, 1, kFp8Block).decoded;
    const Values right = quantized(b, {p.n, p.k}, kFp8Block, kFp8Block).decoded;
    MatmulFp8 product{quantize(a, p.m, p.k, Fp8Blocks::rows, ctx), quantize(b, p.n, p.k, Fp8Blocks::squares, ctx),
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

// A bias, a residual or both are added before the result is rounded.
TEST_P(Fp8Products, AddABiasAndAResidual) {
  for (const Product& p : products(GetParam().backend))
    for (const bool tensorwise : {false, true}) {
      SCOPED_TRACE(str(p.m, " x ", p.n, " x ", p.k, tensorwise ? ", tensorwise" : ""));
      const ExecContext ctx = context();
      const Fp8Blocks rows = tensorwise ? Fp8Blocks::tensor : Fp8Blocks::rows;
      const Fp8Blocks squares = tensorwise ? Fp8Blocks::tensor : Fp8Blocks::squares;
      const auto decoded = [&](const Values& v, const Extents& e, std::int64_t height) {
        return quantized(v, e, tensorwise ? e.rows : height, tensorwise ? e.columns : kFp8Block).decoded;
      };
      const Values a = random_values("a", p.m * p.k), b = random_values("b", p.n * p.k, 0.1);
      const Values left = decoded(floats_of(a), {p.m, p.k}, 1), right = decoded(floats_of(b), {p.n, p.k}, kFp8Block);
      const auto term = [&](const char* name, const Shape& shape) {
        return make_tensor(shape, DType::bf16, random_values(name, shape.numel()), ctx);
      };
      MatmulFp8 product{quantize(a, p.m, p.k, rows, ctx), quantize(b, p.n, p.k, squares, ctx), {}};
      for (const int terms : {1, 2, 3}) {
        product.bias = terms & 1 ? term("bias", {p.n}) : Tensor{};
        product.residual = terms & 2 ? term("residual", {p.m, p.n}) : Tensor{};
        Values added = terms & 2 ? read_values(product.residual, ctx) : Values(static_cast<std::size_t>(p.m * p.n));
        const Values bias = terms & 1 ? read_values(product.bias, ctx) : Values(static_cast<std::size_t>(p.n));
        for (std::size_t i = 0; i < added.size(); ++i) added[i] += bias[i % bias.size()];
        product.c = ctx.empty({p.m, p.n}, DType::bf16);
        with_each_kernel(matmul_fp8_kernel, product, ctx, [&](const auto& run) {
          product.c = ctx.empty({p.m, p.n}, DType::bf16);
          run(product, ctx);
          expect_product(read_values(product.c, ctx), left, right, p, {1.0 / 256, of_terms()}, 1, added);
        });
      }
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
  const Fp8Matrix columns = empty_fp8(16, 8, Fp8Blocks::rows, ctx);
  EXPECT_THROW(quantize_fp8_kernel({ctx.zeros({8, 16}), squares, columns}, ctx), Error);
  EXPECT_THROW(matmul_fp8_kernel({squares, squares, ctx.zeros({8, 8})}, ctx), Error);
  EXPECT_THROW(matmul_fp8_kernel({rows, rows, ctx.zeros({8, 8})}, ctx), Error);
  EXPECT_THROW(matmul_fp8_kernel({rows, squares, ctx.zeros({8, 9})}, ctx), Error);
  EXPECT_THROW(matmul_fp8_kernel({rows, squares, ctx.zeros({8, 8}, DType::bf16), true}, ctx), Error);
  EXPECT_NO_THROW(matmul_fp8_kernel({rows, squares, ctx.zeros({8, 8}), false, ctx.zeros({8}), ctx.zeros({8, 8})}, ctx));
  EXPECT_THROW(matmul_fp8_kernel({rows, squares, ctx.zeros({8, 8}), true, ctx.zeros({8})}, ctx), Error);
  EXPECT_THROW(matmul_fp8_kernel({rows, squares, ctx.zeros({8, 8}), false, ctx.zeros({7})}, ctx), Error);
  EXPECT_THROW(matmul_fp8_kernel({rows, squares, ctx.zeros({8, 8}), false, {}, ctx.zeros({8, 9})}, ctx), Error);
  EXPECT_THROW(rms_norm_fp8_kernel({ctx.zeros({8, 16}), ctx.zeros({16}), ctx.zeros({8}), squares}, ctx), Error);
  EXPECT_THROW(rms_norm_fp8_kernel({ctx.zeros({8, 16}), ctx.zeros({16}), ctx.zeros({8}), {}, columns}, ctx), Error);
  EXPECT_THROW(rms_norm_fp8_kernel({ctx.zeros({8, 16}), ctx.zeros({15}), ctx.zeros({8}), rows}, ctx), Error);
  EXPECT_THROW(swiglu_fp8_kernel({ctx.zeros({8, 16}), rows}, ctx), Error);
  EXPECT_THROW(swiglu_backward_fp8_kernel({ctx.zeros({8, 16}), ctx.zeros({8, 9}), rows}, ctx), Error);
  const Fp8Matrix gate_up = empty_fp8(8, 256, Fp8Blocks::rows, ctx), half = empty_fp8(8, 128, Fp8Blocks::rows, ctx);
  EXPECT_NO_THROW(swiglu_fp8_kernel({{}, half, {}, {}, gate_up}, ctx));
  EXPECT_THROW(swiglu_fp8_kernel({ctx.zeros({8, 256}), half, {}, {}, gate_up}, ctx), Error);
  EXPECT_THROW(swiglu_fp8_kernel({{}, half, {}, {}}, ctx), Error);
  EXPECT_THROW(swiglu_fp8_kernel({{}, empty_fp8(8, 64, Fp8Blocks::rows, ctx), {}, {}, half}, ctx), Error);
  EXPECT_NO_THROW(swiglu_backward_fp8_kernel({{}, ctx.zeros({8, 128}), gate_up, {}, {}, gate_up}, ctx));
  EXPECT_THROW(swiglu_backward_fp8_kernel({{}, ctx.zeros({8, 127}), gate_up, {}, {}, gate_up}, ctx), Error);
  EXPECT_THROW(dequantize_fp8_kernel({squares, ctx.zeros({8, 16})}, ctx), Error);
  EXPECT_THROW(dequantize_fp8_kernel({rows, ctx.zeros({8, 17})}, ctx), Error);
  const Fp8Matrix tall_rows = empty_fp8(256, 8, Fp8Blocks::rows, ctx);
  const Fp8Matrix tall_squares = empty_fp8(256, 8, Fp8Blocks::squares, ctx);
  EXPECT_NO_THROW(swiglu_backward_fp8_kernel({ctx.zeros({8, 256}), ctx.zeros({8, 128}), {}, tall_rows}, ctx));
  EXPECT_THROW(swiglu_backward_fp8_kernel({ctx.zeros({8, 256}), ctx.zeros({8, 128}), {}, tall_squares}, ctx), Error);
  EXPECT_NO_THROW(swiglu_fp8_kernel({ctx.zeros({8, 512}), {}, tall_squares}, ctx));
  EXPECT_THROW(swiglu_fp8_kernel({ctx.zeros({8, 512}), {}, tall_rows}, ctx), Error);
  const Tensor positions = ctx.zeros({8}, DType::i32), inv_freq = ctx.zeros({4});
  EXPECT_NO_THROW(rope_fp8_kernel({ctx.zeros({8, 16}), positions, inv_freq, 2, true, rows}, ctx));
  EXPECT_THROW(rope_fp8_kernel({ctx.zeros({8, 16}), positions, inv_freq, 3, true, rows}, ctx), Error);
  EXPECT_THROW(rope_fp8_kernel({ctx.zeros({8, 16}), ctx.zeros({7}, DType::i32), inv_freq, 2, true, rows}, ctx), Error);
}

}  // namespace
}  // namespace ring::test
