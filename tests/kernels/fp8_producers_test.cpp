// Ops that write their results in FP8, blockwise and tensorwise, against their definitions in float64.
#include "kernels/fp8_producers.h"

#include "tests/kernels/fp8_checks.h"

namespace ring::test {
namespace {

constexpr Fp8Blocks kForms[] = {Fp8Blocks::rows, Fp8Blocks::tensor};  // of `out`

// Returns the blocks of the op's transposed output: forwards write the input of a linear layer, backwards a gradient.
template <class Args>
Fp8Blocks transposed_blocks(Fp8Blocks out) {
  constexpr bool kInput = std::is_same_v<Args, RmsNormFp8> || std::is_same_v<Args, SwiGluFp8>;
  return out == Fp8Blocks::rows && kInput ? Fp8Blocks::squares : out;
}

// Index of the scale of element (row, column) in a matrix with `rows` rows and `columns` columns.
std::size_t scale_index(Fp8Blocks blocks, const Extents& e, std::int64_t row, std::int64_t column) {
  switch (blocks) {
    case Fp8Blocks::rows: return static_cast<std::size_t>(column / kFp8Block * e.rows + row);
    case Fp8Blocks::squares:
      return static_cast<std::size_t>(row / kFp8Block * fp8_blocks(e.columns) + column / kFp8Block);
    default: return 0;
  }
}

// Returns the dequantized values of a matrix, row by row.
Values decoded(const Fp8Matrix& m, const ExecContext& ctx) {
  const HostFp8 host = read(m, ctx);
  const std::int64_t rows = m.values.dim(0), columns = m.values.dim(1);
  Values v;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      v.push_back(e4m3_value(host.values[static_cast<std::size_t>(r * columns + c)]) *
                  host.scales[scale_index(m.blocks, {rows, columns}, r, c)]);
  return v;
}

// Compares an output of a producer with the op's result in float64. e4m3 keeps 3 bits, or multiples of 2^-9 scales; a
// block's largest element is at least 1.75 * 2^7 scales. `error`: error of the op's own arithmetic.
void expect_fp8_of(const Fp8Matrix& got, const Values& want, double error, const ExecContext& ctx) {
  const std::int64_t rows = got.values.dim(0), columns = got.values.dim(1);
  const Values values = decoded(got, ctx);
  ASSERT_EQ(values.size(), want.size());
  Values max(static_cast<std::size_t>(got.scales.numel()));  // of each block
  const auto each = [&](const auto& f) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        f(static_cast<std::size_t>(r * columns + c), max[scale_index(got.blocks, {rows, columns}, r, c)]);
  };
  each([&](std::size_t i, double& of_block) {
    if (!std::isnan(want[i])) of_block = std::max(of_block, std::abs(want[i]));
  });
  each([&](std::size_t i, double of_block) {
    if (std::isnan(want[i])) {
      ASSERT_TRUE(std::isnan(values[i])) << "element " << i;
      return;
    }
    const double bound = std::abs(want[i]) * (1.0 / 16 + error) + of_block * (1.0 / (224 * 1024) + error);
    ASSERT_LE(std::abs(values[i] - want[i]), bound) << "element " << i << ", expected " << want[i];
  });
}

class Fp8Producers : public Fp8 {
 protected:
  // Returns random elements of the target's type, one of them NaN.
  static Values elements(const std::string& name, const Extents& e, double size) {
    Values x = random_values(name, e.rows * e.columns, size);
    for (double& v : x)
      v = GetParam().dtype == DType::bf16 ? to_float(to_bf16(static_cast<float>(v))) : static_cast<float>(v);
    return x;
  }
  // Error of f32 arithmetic, of rounding to the target's type, and of two products instead of one in the reference.
  static double error() { return GetParam().dtype == DType::bf16 ? 1.0 / 200 : 1e-5; }

  template <class Args>
  static void set_outputs(Args& args, const Extents& e, Fp8Blocks blocks, const ExecContext& ctx) {
    args.out = empty_fp8(e.rows, e.columns, blocks, ctx);
    args.transposed = empty_fp8(e.columns, e.rows, transposed_blocks<Args>(blocks), ctx);
    args.max = {blocks == Fp8Blocks::tensor ? ctx.zeros({1}) : Tensor{}};
  }

  // Runs every kernel of the slot with new outputs and compares them with the result [N,C] in float64.
  template <class Args, class F>
  void expect_result(const Kernel<Args>& slot, Args args, const Extents& e, const Values& want, Fp8Blocks blocks,
                     const ExecContext& ctx, const F& then) const {
    with_each_kernel(slot, args, ctx, [&](const auto& run) {
      set_outputs(args, e, blocks, ctx);
      run(args, ctx);
      expect_fp8_of(args.out, want, error(), ctx);
      expect_fp8_of(args.transposed, transposed(want, e.rows, e.columns), error(), ctx);
      then(args);
      Args alone = args;
      alone.out = {}, alone.transposed = empty_fp8(e.columns, e.rows, args.transposed.blocks, ctx);
      run(alone, ctx);
      EXPECT_EQ(read(alone.transposed, ctx), read(args.transposed, ctx));
      if (blocks == Fp8Blocks::tensor) expect_same_in_two_calls(run, args, e, ctx);
    });
  }
  // Expects the same bytes if one call finds the maximum and a second call quantizes.
  template <class Args, class Run>
  static void expect_same_in_two_calls(const Run& run, const Args& args, const Extents& e, const ExecContext& ctx) {
    Args split = args;
    set_outputs(split, e, Fp8Blocks::tensor, ctx);
    Args find = split;
    find.out = {}, find.transposed = {};
    run(find, ctx);
    EXPECT_EQ(read_values(split.max.value, ctx), read_values(args.max.value, ctx));
    split.max.given = true;
    run(split, ctx);
    EXPECT_EQ(read(split.out, ctx), read(args.out, ctx));
    EXPECT_EQ(read(split.transposed, ctx), read(args.transposed, ctx));
  }
  // Runs both forms; kernels promise the same bytes.
  template <class Args>
  void expect_same_bytes(const Kernel<Args>& slot, const Args& args, const Extents& e, const Values& want,
                         const ExecContext& ctx) const {
    for (const Fp8Blocks blocks : kForms) {
      std::vector<HostFp8> outputs;
      expect_result(slot, args, e, want, blocks, ctx, [&](const Args& done) {
        outputs.push_back(read(done.out, ctx)), outputs.push_back(read(done.transposed, ctx));
        EXPECT_EQ(outputs.end()[-2], outputs[0]);
        EXPECT_EQ(outputs.end()[-1], outputs[1]);
      });
    }
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
    for (const Fp8Blocks blocks : kForms)
      expect_result(rms_norm_fp8_kernel, args, e, want, blocks, ctx, [&](const RmsNormFp8& done) {
        const Values rstd = read_values(done.rstd, ctx);
        for (std::size_t r = 0; r < rstds.size(); ++r)
          EXPECT_TRUE(std::isnan(rstds[r]) ? std::isnan(rstd[r]) : std::abs(rstd[r] - rstds[r]) < 1e-6 * rstds[r]) << r;
      });
  }
}

// With the kernel's rstd, the bytes equal those of the definition in f32.
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
    const Quantized want = quantized(y, e, 1, kFp8Block);
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

constexpr Extents kWholeBlocks[] = {{1, 128}, {5, 256}, {130, 128}, {257, 384}};

// gate_up [N,2F]: in FP8, and dequantized as defined in float64.
struct RoundedGateUp {
  Extents extents;
  Fp8Matrix fp8;
  Values values;
  Tensor elements;

  RoundedGateUp(const Extents& e, const Values& x, DType type, const ExecContext& ctx) : extents(e) {
    fp8 = empty_fp8(extents.rows, extents.columns, Fp8Blocks::rows, ctx);
    quantize_fp8_kernel({make_tensor({extents.rows, extents.columns}, type, x, ctx), fp8, {}}, ctx);
    values = quantized(x, extents, 1, kFp8Block).decoded;
    for (double& v : values) v = type == DType::bf16 ? to_float(to_bf16(static_cast<float>(v))) : v;
    elements = make_tensor({extents.rows, extents.columns}, type, values, ctx);
  }
};

Values values_by_row(const Tensor& t, const ExecContext& ctx) {
  Values all;
  for (std::int64_t r = 0; r < t.dim(0); ++r) {
    const Values row = read_values(t.narrow(0, r, 1).view({t.dim(1)}), ctx);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

void expect_values(const Values& got, const Values& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_TRUE(std::isnan(want[i]) ? std::isnan(got[i]) : got[i] == want[i])
        << "element " << i << ": " << got[i] << ", expected " << want[i];
}

TEST_P(Fp8Producers, DequantizeRows) {
  for (const Extents& e : kExtents) {
    SCOPED_TRACE(str(e.rows, " x ", e.columns));
    const ExecContext ctx = context();
    const Values x = planted(e, GetParam().dtype, false);
    const Fp8Matrix q = empty_fp8(e.rows, e.columns, Fp8Blocks::rows, ctx);
    quantize_fp8_kernel({make(e, x, ctx), q, {}}, ctx);
    Values want = quantized(x, e, 1, kFp8Block).decoded;
    if (GetParam().dtype == DType::bf16)
      for (double& v : want) v = to_float(to_bf16(static_cast<float>(v)));
    DequantizeFp8 args{q, ctx.empty({e.rows, e.columns}, GetParam().dtype)};
    with_each_kernel(dequantize_fp8_kernel, args, ctx, [&](const auto& run) {
      args.out = ctx.empty({e.rows, e.columns}, GetParam().dtype);
      run(args, ctx);
      expect_values(values_by_row(args.out, ctx), want);
      args.out = ctx.empty({e.rows, e.columns + 3}, GetParam().dtype).narrow(1, 1, e.columns);  // rows are not aligned
      run(args, ctx);
      expect_values(values_by_row(args.out, ctx), want);
    });
  }
}

// Runs every kernel of the slot on gate_up in FP8, and on the same elements as a tensor: the bytes are equal.
template <class Args, class SetOutputs>
void expect_bytes_of_elements(const Kernel<Args>& slot, Args args, const RoundedGateUp& in, const ExecContext& ctx,
                              const SetOutputs& set_outputs) {
  for (const Fp8Blocks blocks : kForms)
    with_each_kernel(slot, args, ctx, [&](const auto& run) {
      Args of_tensor = args;
      of_tensor.fp8_gate_up = {}, of_tensor.gate_up = in.elements;
      for (Args* a : {&args, &of_tensor}) set_outputs(*a, blocks), run(*a, ctx);
      EXPECT_EQ(read(args.out, ctx), read(of_tensor.out, ctx));
      EXPECT_EQ(read(args.transposed, ctx), read(of_tensor.transposed, ctx));
    });
}

class Fp8GateUp : public Fp8Producers {
 protected:
  // Returns gate_up for an output [N,F]. Unless finite, it has zeros, subnormal numbers, the largest numbers, NaN and
  // infinities.
  static RoundedGateUp gate_up(const Extents& out, bool finite, const ExecContext& ctx) {
    const Extents e{out.rows, 2 * out.columns};
    return {e, finite ? elements("x", e, 4) : planted(e, GetParam().dtype, false), GetParam().dtype, ctx};
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, Fp8GateUp, testing::Values(Target{}), testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Gpu, Fp8GateUp, testing::Values(Target{Backend::cuda}, Target{Backend::cuda, DType::bf16}),
                         testing::PrintToStringParamName());

TEST_P(Fp8GateUp, GivesGatedRows) {
  for (const Extents& e : kWholeBlocks)
    for (const bool finite : {false, true}) {
      SCOPED_TRACE(str(e.rows, " x ", e.columns, ' ', finite));
      const ExecContext ctx = context();
      const RoundedGateUp in = gate_up(e, finite, ctx);
      const SwiGluFp8 args{.fp8_gate_up = in.fp8, .dtype = GetParam().dtype};
      expect_bytes_of_elements(swiglu_fp8_kernel, args, in, ctx,
                               [&](SwiGluFp8& a, Fp8Blocks blocks) { set_outputs(a, e, blocks, ctx); });
      if (!finite) continue;
      Values want;
      for (std::int64_t i = 0; i < e.rows * e.columns; ++i) {
        const double* gate = &in.values[static_cast<std::size_t>(i / e.columns * 2 * e.columns + i % e.columns)];
        want.push_back(gate[0] * logistic(gate[0]) * gate[e.columns]);
      }
      expect_same_bytes(swiglu_fp8_kernel, args, e, want, ctx);
    }
}

TEST_P(Fp8GateUp, GivesGradientsOfGatedRows) {
  for (const Extents& e : kWholeBlocks)
    for (const bool finite : {false, true}) {
      SCOPED_TRACE(str(e.rows, " x ", e.columns, ' ', finite));
      const ExecContext ctx = context();
      const RoundedGateUp in = gate_up(e, finite, ctx);
      const SwiGluBackwardFp8 args{.dy = make(e, elements("dy", e, 0.1), ctx), .fp8_gate_up = in.fp8};
      expect_bytes_of_elements(swiglu_backward_fp8_kernel, args, in, ctx, [&](SwiGluBackwardFp8& a, Fp8Blocks blocks) {
        set_outputs(a, in.extents, blocks, ctx);
      });
    }
}

struct Heads {
  std::int64_t count, width, others;  // others: columns after the heads
};

// Compares every kernel with the definition of RoPE in float64, and the bytes with those of the first kernel.
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
    for (const Fp8Blocks blocks : kForms) {
      std::vector<HostFp8> outputs;
      with_each_kernel(rope_fp8_kernel, args, ctx, [&](const auto& run) {
        args.x = make(e, x, ctx);  // a kernel may overwrite it
        set_outputs(args, e, blocks, ctx);
        run(args, ctx);
        expect_fp8_of(args.out, want, error(), ctx);
        expect_fp8_of(args.transposed, transposed(want, e.rows, e.columns), error(), ctx);
        outputs.push_back(read(args.out, ctx)), outputs.push_back(read(args.transposed, ctx));
        EXPECT_EQ(outputs.end()[-2], outputs[0]);
        EXPECT_EQ(outputs.end()[-1], outputs[1]);
        args.x = make(e, x, ctx);
        if (blocks == Fp8Blocks::tensor) expect_same_in_two_calls(run, args, e, ctx);
      });
    }
  }
}

}  // namespace
}  // namespace ring::test
