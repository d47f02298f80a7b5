// Ops that write FP8 for the linear layers next to them have the bits of separate ops.
#include <set>

#include "autograd/fp8_linear.h"
#include "autograd/ops.h"
#include "kernels/norm.h"
#include "tests/kernels/fp8_checks.h"

namespace ring::test {
namespace {

constexpr std::int64_t kRowCount = 200, kC = 160, kOut = 96;

// Rounds x to FP8 in blocks of rows; the gradient passes through unchanged.
Var rounded_to_fp8(ring::Run& run, const Var& x) {
  const auto forward = [](const ExecContext& ctx, const Tensor& in) {
    const Fp8Matrix q = empty_fp8(in.dim(0), in.dim(1), Fp8Blocks::rows, ctx);
    quantize_fp8_kernel({in, q, {}}, ctx);
    const Tensor y = ctx.empty(in.shape(), in.dtype());
    dequantize_fp8_kernel({q, y}, ctx);
    return y;
  };
  return run.op("rounded_to_fp8", x, forward,
                [](const Backward& back, const SlotPtr& in) { back.accumulate(in, back.grad()); });
}

class SeenSlots final : public KernelObserver {
 public:
  void call(const KernelCall& call, const ExecContext&, const std::function<void()>& run) override {
    seen.emplace(call.slot);
    run();
  }
  std::set<std::string> seen;
};

struct Outcome {
  Values y;
  std::vector<Values> gradients;
  std::set<std::string> slots;  // the kernels that ran
  bool operator==(const Outcome& o) const { return y == o.y && gradients == o.gradients; }
};

class Fp8Fusion : public Fp8 {
 protected:
  struct Options {
    bool fused = true, tensorwise = false, recompute = false;
    bool twice = false;  // the gradient of the first layer's output is a sum
    bool fp8_gate_up = false;
  };
  Var leaf(const char* name, const Shape& shape, const ExecContext& ctx) const {
    return {make_tensor(shape, GetParam().dtype, random_values(name, shape.numel()), ctx),
            std::make_shared<GradSlot>()};
  }
  // Runs y = f(run, x w^T) with this format and the backward.
  template <class F>
  Outcome run_layers(const Options& o, const Shape& weight, const std::vector<Var>& others, const ExecContext& context,
                     const F& f) const {
    const auto observer = std::make_shared<SeenSlots>();
    ExecContext ctx = context;
    ctx.observer = observer;
    Tape tape;
    ring::Run run{.ctx = ctx, .tape = &tape, .saving = {.recompute = o.recompute, .recompute_attention = o.recompute}};
    std::vector<Var> leaves = {leaf("x", {kRowCount, weight[1]}, ctx), leaf("w", weight, ctx)};
    leaves.insert(leaves.end(), others.begin(), others.end());
    const Var h = fp8_linear(run, leaves[0], leaves[1], {}, {}, {.tensorwise = o.tensorwise});
    if (!o.fused) h.slot->reads_fp8 = false;
    Var y = f(run, h);
    if (o.twice) y = add(run, y, f(run, h));
    Outcome out{read_values(y.value, ctx), {}, {}};
    tape.backward(y.slot, make_tensor(y.value.shape(), GetParam().dtype, random_values("dy", y.value.numel()), ctx),
                  ctx);
    for (const Var& v : leaves) out.gradients.push_back(read_values(v.slot->grad, ctx));
    out.slots = observer->seen;
    return out;
  }
  Outcome mlp(const Options& o) const {
    const ExecContext ctx = context();
    const std::int64_t width = o.fp8_gate_up ? 256 : 144;
    const Var w = leaf("down", {kOut, width}, ctx), residual = leaf("residual", {kRowCount, kOut}, ctx);
    return run_layers(o, {2 * width, kC}, {w, residual}, ctx, [&](ring::Run& run, const Var& gate_up) {
      const Fp8Linear f{.tensorwise = o.tensorwise, .swiglu = o.fused, .fp8_gate_up = o.fused && o.fp8_gate_up};
      if (o.fused) return fp8_linear(run, gate_up, w, {}, residual, f);
      return fp8_linear(run, swiglu(run, o.fp8_gate_up ? rounded_to_fp8(run, gate_up) : gate_up), w, {}, residual, f);
    });
  }
  Outcome attention(const Options& o) const {
    const ExecContext ctx = context();
    SelfAttention options{.heads = 2, .kv_heads = 1, .head_dim = 32};
    options.inv_freq = make_tensor({16}, DType::f32, random_values("inv_freq", 16), ctx);
    const Sequences sequences = Sequences::uniform(2, kRowCount / 2, ctx);
    return run_layers(o, {128, kC}, {}, ctx,
                      [&](ring::Run& run, const Var& qkv) { return self_attention(run, qkv, sequences, options); });
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, Fp8Fusion, testing::Values(Target{}), testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Gpu, Fp8Fusion, testing::Values(Target{Backend::cuda, DType::bf16}),
                         testing::PrintToStringParamName());

TEST_P(Fp8Fusion, SwiGluHasTheBitsOfSeparateOps) {
  for (const bool tensorwise : {false, true})
    for (const bool recompute : {false, true})
      for (const bool twice : {false, true}) {
        SCOPED_TRACE(str(tensorwise, ' ', recompute, ' ', twice));
        const Outcome separate = mlp({false, tensorwise, recompute, twice});
        const Outcome fused = mlp({true, tensorwise, recompute, twice});
        EXPECT_EQ(fused, separate);
        EXPECT_FALSE(separate.slots.contains("swiglu_fp8") || separate.slots.contains("swiglu_backward_fp8"));
        EXPECT_TRUE(fused.slots.contains("swiglu_fp8") && !fused.slots.contains("swiglu"));
        EXPECT_EQ(fused.slots.contains("swiglu_backward_fp8"), !twice);
        EXPECT_EQ(fused.slots.contains("swiglu_backward"), twice);
      }
}

// gate_up in FP8 is what separate ops compute that round gate_up first, and pass the gradient through unchanged.
TEST_P(Fp8Fusion, RoundedGateAndUpHaveTheBitsOfSeparateOps) {
  for (const bool tensorwise : {false, true}) {
    std::vector<Outcome> once;
    for (const bool recompute : {false, true})
      for (const bool twice : {false, true}) {
        SCOPED_TRACE(str(tensorwise, ' ', recompute, ' ', twice));
        const Outcome separate = mlp({false, tensorwise, recompute, twice, true});
        const Outcome fused = mlp({true, tensorwise, recompute, twice, true});
        EXPECT_EQ(fused, separate);
        EXPECT_TRUE(fused.slots.contains("swiglu_fp8") && !fused.slots.contains("swiglu"));
        EXPECT_EQ(fused.slots.contains("swiglu_backward_fp8"), !twice);
        EXPECT_EQ(fused.slots.contains("dequantize_fp8"), twice);
        if (!twice) once.push_back(fused);
      }
    EXPECT_EQ(once[0], once[1]) << "recomputed";
  }
}

TEST_P(Fp8Fusion, RotationHasTheBitsOfSeparateOps) {
  for (const bool tensorwise : {false, true})
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(str(tensorwise, ' ', recompute));
      const Outcome separate = attention({false, tensorwise, recompute});
      const Outcome fused = attention({true, tensorwise, recompute});
      EXPECT_EQ(fused, separate);
      EXPECT_FALSE(separate.slots.contains("rope_fp8"));
      EXPECT_EQ(fused.slots.contains("rope_fp8"), !tensorwise);
    }
}

// The gradient of a residual stream, whose maximum comes from the norm's backward.
TEST_P(Fp8Fusion, TheMaximumOfANormsBackwardHasTheBitsOfTheQuantizersOwn) {
  for (const bool recompute : {false, true}) {
    const auto block = [&](bool known) {
      const ExecContext ctx = context();
      const Var scale = leaf("scale", {kOut}, ctx), w = leaf("w2", {kOut, kOut}, ctx);
      return run_layers({.tensorwise = true, .recompute = recompute}, {kOut, kC}, {scale, w}, ctx,
                        [&](ring::Run& run, const Var& stream) {
                          EXPECT_TRUE(stream.slot->reads_max);
                          stream.slot->reads_max = known;
                          const Var normed = rms_norm(run, stream, scale, 1e-5f);
                          return fp8_linear(run, normed, w, {}, stream, {.tensorwise = true});
                        });
    };
    EXPECT_EQ(block(true), block(false));
  }
}

TEST_P(Fp8Fusion, NormBackwardFindsItsMaximum) {
  const DType type = GetParam().dtype;
  for (const std::int64_t width : {8, 37, 144, 2048, 4100}) {
    SCOPED_TRACE(width);
    const ExecContext ctx = context();
    const auto make = [&](const char* name, const Shape& shape, DType dtype) {
      return make_tensor(shape, dtype, random_values(name, shape.numel()), ctx);
    };
    const Tensor dx = make("dx", {300, width}, type), max = ctx.zeros({1});
    rms_norm_backward_kernel({.x = make("x", dx.shape(), type),
                              .w = make("w", {width}, type),
                              .rstd = make("rstd", {300}, DType::f32),
                              .dy = make("dy", dx.shape(), type),
                              .dx = dx,
                              .beta_x = 1,
                              .max = max},
                             ctx);
    double want = 0;
    for (const double v : read_values(dx, ctx)) want = std::max(want, std::abs(v));
    EXPECT_EQ(read_values(max, ctx), Values{want});
  }
}

}  // namespace
}  // namespace ring::test
