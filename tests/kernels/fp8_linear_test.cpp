// Linear layers in FP8 (autograd/fp8_linear.h): results and gradients against float64 on the quantized operands, and
// against the exact layer within a bound.
#include "autograd/fp8_linear.h"

#include "autograd/ops.h"
#include "tests/kernels/fp8_checks.h"

namespace ring::test {
namespace {

constexpr std::int64_t kN = 200, kM = 144, kK = 272;  // partial blocks along every side
constexpr Extents kX{kN, kK}, kW{kM, kK}, kDy{kN, kM};

// Results of y = x w^T + b + r, used twice, so that gradients are added to.
struct LinearResults {
  Values y, dx, dw, db;
};

LinearResults oracle(const Values& x, const Values& w, const Values& b, const Values& r, const Values& dy,
                     const Values& dy_by_column, const Values& x_by_square) {
  LinearResults all{Values(kN * kM), Values(kN * kK), Values(kM * kK), Values(kM)};
  for (std::size_t n = 0; n < kN; ++n)
    for (std::size_t m = 0; m < kM; ++m) {
      double sum = b[m] + r[n * kM + m];
      for (std::size_t k = 0; k < kK; ++k) {
        sum += x[n * kK + k] * w[m * kK + k];
        all.dx[n * kK + k] += 2 * dy[n * kM + m] * w[m * kK + k];
        all.dw[m * kK + k] += 2 * dy_by_column[n * kM + m] * x_by_square[n * kK + k];
      }
      all.y[n * kM + m] = sum;
    }
  return all;
}

class Fp8LinearOp : public Fp8 {
 protected:
  struct Inputs {
    Values x, w, b, r, dy;
  };
  Inputs inputs() const {
    const auto make = [](const char* name, std::int64_t n) {
      Values v = random_values(name, n);
      for (double& value : v) value = to_float(to_bf16(static_cast<float>(value)));
      return v;
    };
    Inputs in{make("x", kN * kK), make("w", kM * kK), make("b", kM), make("r", kN * kM), make("dy", kN * kM)};
    for (std::size_t i = 0; i < in.x.size(); i += 97) in.x[i] *= 64;  // scales differ
    return in;
  }
  // gathered: if not null, the weight in FP8.
  LinearResults run_op(const Inputs& in, Fp8Linear f, bool recompute, const Fp8Matrix* gathered = nullptr) const {
    const ExecContext ctx = context();
    Tape tape;
    ring::Run run{.ctx = ctx, .tape = &tape, .saving = {.recompute = recompute}};
    const auto leaf = [&](const Shape& shape, const Values& v) {
      return Var{make_tensor(shape, GetParam().dtype, v, ctx), std::make_shared<GradSlot>()};
    };
    const Var x = leaf({kN, kK}, in.x), b = leaf({kM}, in.b), r = leaf({kN, kM}, in.r);
    Var w = leaf({kM, kK}, in.w);
    if (gathered) {
      w.value = gathered->values;
      for (const Var& v : {w, b}) v.slot->grad = ctx.zeros(v.value.shape(), GetParam().dtype), v.slot->bound = true;
      f.gathered = gathered;
    }
    const Var y = fp8_linear(run, x, w, b, r, f), again = fp8_linear(run, x, w, b, r, f);
    const Var sum = add(run, y, again);
    LinearResults all{.y = read_values(y.value, ctx)};
    tape.backward(sum.slot, make_tensor({kN, kM}, GetParam().dtype, in.dy, ctx), ctx);
    const auto read = [&](const Var& v) { return read_values(v.slot->grad, ctx); };
    all.dx = read(x), all.dw = read(w), all.db = read(b);
    EXPECT_EQ(read(r).size(), in.r.size());
    return all;
  }
  static void expect_all(const LinearResults& got, const LinearResults& want, double tolerance) {
    EXPECT_TRUE(close(got.y, want.y, tolerance));
    EXPECT_TRUE(close(got.dx, want.dx, tolerance));
    EXPECT_TRUE(close(got.dw, want.dw, tolerance));
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, Fp8LinearOp, testing::Values(Target{.tolerance = 1e-6}),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Gpu, Fp8LinearOp, testing::Values(Target{Backend::cuda, DType::bf16, 6e-3}),
                         testing::PrintToStringParamName());

TEST_P(Fp8LinearOp, MultipliesQuantizedOperands) {
  const Inputs in = inputs();
  for (const bool tensorwise : {false, true}) {
    SCOPED_TRACE(tensorwise);
    const auto decoded = [&](const Values& v, const Extents& e, std::int64_t height, std::int64_t width) {
      return quantized(v, e, tensorwise ? e.rows : height, tensorwise ? e.columns : width).decoded;
    };
    const LinearResults want =
        oracle(decoded(in.x, kX, 1, 128), decoded(in.w, kW, 128, 128), in.b, in.r, decoded(in.dy, kDy, 1, 128),
               decoded(in.dy, kDy, 128, 1), decoded(in.x, kX, 128, 128));
    const LinearResults got = run_op(in, {.tensorwise = tensorwise}, false);
    expect_all(got, want, GetParam().tolerance);
    const LinearResults recomputed = run_op(in, {.tensorwise = tensorwise}, true);
    EXPECT_EQ(got.y, recomputed.y);
    EXPECT_EQ(got.dx, recomputed.dx);
    EXPECT_EQ(got.dw, recomputed.dw);
    EXPECT_EQ(got.db, recomputed.db);
  }
}

// Kept copies of the weight change no bit. They are freed by the last backward that reads them.
TEST_P(Fp8LinearOp, KeepsTheWeightQuantized) {
  const Inputs in = inputs();
  for (const bool tensorwise : {false, true}) {
    SCOPED_TRACE(tensorwise);
    const LinearResults want = run_op(in, {.tensorwise = tensorwise}, false);
    for (const bool recompute : {false, true}) {
      Fp8Copies copies;
      const LinearResults got = run_op(in, {.tensorwise = tensorwise, .weight = &copies}, recompute);
      EXPECT_EQ(got.y, want.y);
      EXPECT_EQ(got.dx, want.dx);
      EXPECT_EQ(got.dw, want.dw);
      EXPECT_FALSE(copies.plain.defined() || copies.transposed.defined());
    }
  }
}

// A weight that is available only in FP8 gives bit-identical results.
TEST_P(Fp8LinearOp, ReadsAGatheredWeight) {
  const Inputs in = inputs();
  for (const bool tensorwise : {false, true}) {
    SCOPED_TRACE(tensorwise);
    const LinearResults want = run_op(in, {.tensorwise = tensorwise}, false);
    const ExecContext ctx = context();
    const Fp8Matrix w = empty_fp8(kM, kK, tensorwise ? Fp8Blocks::tensor : Fp8Blocks::squares, ctx);
    const Fp8Max max{tensorwise ? ctx.zeros({1}) : Tensor{}};
    quantize_fp8_kernel({make(kW, in.w, ctx), w, {}, max}, ctx);
    ctx.stream.synchronize();
    for (const bool recompute : {false, true}) {
      const LinearResults got = run_op(in, {.tensorwise = tensorwise}, recompute, &w);
      EXPECT_EQ(got.y, want.y);
      EXPECT_EQ(got.dx, want.dx);
      EXPECT_EQ(got.dw, want.dw);
      EXPECT_EQ(got.db, want.db);
    }
  }
}

// e4m3 keeps four bits: about 2.6 % per operand, 3.7 % per product.
TEST_P(Fp8LinearOp, IsCloseToTheExactLayer) {
  const Inputs in = inputs();
  const LinearResults exact = oracle(in.x, in.w, in.b, in.r, in.dy, in.dy, in.x);
  for (const bool tensorwise : {false, true}) {
    SCOPED_TRACE(tensorwise);
    const LinearResults got = run_op(in, {.tensorwise = tensorwise}, false);
    expect_all(got, exact, 0.045);
    EXPECT_FALSE(close(got.y, exact.y, 0.01));
    EXPECT_FALSE(close(got.dx, exact.dx, 0.01));
    EXPECT_FALSE(close(got.dw, exact.dw, 0.01));
  }
}

// With gate_up in FP8, the gradient of gate_up is that of SwiGLU at the rounded values, in float64.
class Fp8SwiGluLayer : public Fp8LinearOp {
 protected:
  static constexpr std::int64_t kF = 256;
  struct Layer {
    Values y, dgate_up, dw;
  };
  Layer run_layer(const Values& gate_up, const Values& w, const Values& dy, bool tensorwise) const {
    const ExecContext ctx = context();
    Tape tape;
    ring::Run run{.ctx = ctx, .tape = &tape};
    const Var x{make({kN, 2 * kF}, gate_up, ctx), std::make_shared<GradSlot>()};
    const Var weight{make({kM, kF}, w, ctx), std::make_shared<GradSlot>()};
    const Fp8Linear f{.tensorwise = tensorwise, .swiglu = true, .fp8_gate_up = true};
    const Var y = fp8_linear(run, x, weight, {}, {}, f);
    const Var alone = fp8_linear(run, {x.value, nullptr}, {weight.value, nullptr}, {}, {}, f);
    Layer all{.y = read_values(y.value, ctx)};
    EXPECT_EQ(bits_of(read_values(alone.value, ctx)), bits_of(all.y)) << "without a backward";
    tape.backward(y.slot, make({kN, kM}, dy, ctx), ctx);
    all.dgate_up = read_values(x.slot->grad, ctx), all.dw = read_values(weight.slot->grad, ctx);
    return all;
  }
  static std::vector<std::uint64_t> bits_of(const Values& v) {
    std::vector<std::uint64_t> bits;
    for (const double x : v) bits.push_back(std::isnan(x) ? ~0ull : std::bit_cast<std::uint64_t>(x));
    return bits;
  }
  Values rounded_values(const char* name, std::int64_t n) const {
    Values v = random_values(name, n);
    for (double& x : v) x = to_float(to_bf16(static_cast<float>(x)));
    return v;
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, Fp8SwiGluLayer, testing::Values(Target{.tolerance = 1e-5}),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Gpu, Fp8SwiGluLayer, testing::Values(Target{Backend::cuda, DType::bf16, 6e-3}),
                         testing::PrintToStringParamName());

TEST_P(Fp8SwiGluLayer, GivesTheGradientAtTheRoundedValues) {
  Values gate_up = rounded_values("gate_up", kN * 2 * kF);
  for (std::size_t i = 0; i < gate_up.size(); i += 97) gate_up[i] *= 16;  // scales differ
  const Values w = rounded_values("w", kM * kF), dy = rounded_values("dy", kN * kM);
  const Values at = quantized(gate_up, {kN, 2 * kF}, 1, 128).decoded;
  for (const bool tensorwise : {false, true}) {
    SCOPED_TRACE(tensorwise);
    const auto decoded = [&](const Values& v, const Extents& e, std::int64_t height, std::int64_t width) {
      return quantized(v, e, tensorwise ? e.rows : height, tensorwise ? e.columns : width).decoded;
    };
    const Values dy8 = decoded(dy, kDy, 1, 128), w8 = decoded(w, {kM, kF}, 128, 128);
    const Values dy_by_column = decoded(dy, kDy, 128, 1);
    Values want(gate_up.size()), exact(kN * kM), dw(kM * kF);
    for (std::size_t n = 0; n < kN; ++n)
      for (std::size_t c = 0; c < kF; ++c) {
        const double gate = at[n * 2 * kF + c], up = at[n * 2 * kF + kF + c], s = 1 / (1 + std::exp(-gate));
        double dh = 0;
        for (std::size_t m = 0; m < kM; ++m) {
          dh += dy8[n * kM + m] * w8[m * kF + c];
          exact[n * kM + m] += gate * s * up * w8[m * kF + c];
          dw[m * kF + c] += dy_by_column[n * kM + m] * gate * s * up;
        }
        want[n * 2 * kF + c] = dh * up * s * (1 + gate * (1 - s)), want[n * 2 * kF + kF + c] = dh * gate * s;
      }
    const Layer got = run_layer(gate_up, w, dy, tensorwise);
    EXPECT_TRUE(close(got.dgate_up, want, GetParam().tolerance));
    EXPECT_TRUE(close(got.y, exact, 0.03));  // SwiGLU's result is rounded, too
    EXPECT_TRUE(close(got.dw, dw, 0.03));
  }
}

TEST_P(Fp8SwiGluLayer, PassesOnWhatIsNotFinite) {
  const Values w = rounded_values("w", kM * kF), dy = rounded_values("dy", kN * kM);
  const auto is_nan = [](double v) { return std::isnan(v); };
  for (const bool tensorwise : {false, true})
    for (const double bad : {kNaN, kInf, -kInf})
      for (const std::int64_t column : {std::int64_t{7}, kF + 7}) {
        SCOPED_TRACE(str(tensorwise, ' ', bad, ' ', column));
        Values gate_up = rounded_values("gate_up", kN * 2 * kF);
        gate_up[static_cast<std::size_t>(3 * 2 * kF + column)] = bad;
        const Layer got = run_layer(gate_up, w, dy, tensorwise);
        EXPECT_TRUE(std::all_of(got.y.begin() + 3 * kM, got.y.begin() + 4 * kM, is_nan));
        for (std::size_t m = 0; m < kM; ++m) EXPECT_TRUE(is_nan(got.dw[m * kF + 7]));
        EXPECT_TRUE(is_nan(got.dgate_up[3 * 2 * kF + 7]));
      }
}

// A NaN or an infinity reaches the results that depend on it.
TEST_P(Fp8LinearOp, PassesOnWhatIsNotFinite) {
  for (const bool tensorwise : {false, true})
    for (const double bad : {kNaN, kInf, -kInf}) {
      SCOPED_TRACE(str(tensorwise, ' ', bad));
      const auto is_nan = [](double v) { return std::isnan(v); };
      Inputs in = inputs();
      in.x[3 * kK + 7] = bad;
      const LinearResults of_x = run_op(in, {.tensorwise = tensorwise}, false);
      EXPECT_TRUE(std::all_of(of_x.y.begin() + 3 * kM, of_x.y.begin() + 4 * kM, is_nan));
      for (std::size_t m = 0; m < kM; ++m) EXPECT_TRUE(is_nan(of_x.dw[m * kK + 7]));
      in = inputs();
      in.w[5 * kK + 9] = bad;
      const LinearResults of_w = run_op(in, {.tensorwise = tensorwise}, false);
      for (std::size_t n = 0; n < kN; ++n) EXPECT_TRUE(is_nan(of_w.y[n * kM + 5]) && is_nan(of_w.dx[n * kK + 9]));
      in = inputs();
      in.dy[4 * kM + 1] = bad;
      const LinearResults of_dy = run_op(in, {.tensorwise = tensorwise}, false);
      EXPECT_TRUE(std::all_of(of_dy.dx.begin() + 4 * kK, of_dy.dx.begin() + 5 * kK, is_nan));
      EXPECT_TRUE(std::all_of(of_dy.dw.begin() + kK, of_dy.dw.begin() + 2 * kK, is_nan));
    }
}

}  // namespace
}  // namespace ring::test
