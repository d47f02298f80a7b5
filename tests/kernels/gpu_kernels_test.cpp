// CUDA kernels against the CPU's, beyond the op cases: strided rows, work in place, masks from any first element, ids
// outside of the table, the optimizer.

#include <cmath>
#include <cstring>

#include "kernels/activation.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"
#include "kernels/rope.h"
#include "tests/kernels/op_case_checks.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/step_state_tensor.h"
#include "tests/kernels/values.h"

namespace ring::test {
namespace {

class GpuKernels : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }

  // `run` returns the tensors to compare.
  template <class Run>
  static void expect_same(const Run& run, double tolerance) {
    const ExecContext cpu = poisoned_context(1), gpu = poisoned_device_context({Backend::cuda, 0});
    const std::vector<Tensor> want = run(cpu), got = run(gpu);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(close(read_values(got[i], gpu), read_values(want[i], cpu), tolerance)) << "tensor " << i;
  }
};

// Returns columns of a [N, 3 * heads * 24] tensor as [N, heads, 24], like queries or keys in a fused product.
Tensor middle(const Tensor& all, std::int64_t heads) { return all.narrow(1, heads * 24, heads * 24).split_dim(1, 24); }

TEST_F(GpuKernels, RmsNormOfViewsAndInPlace) {
  for (std::int64_t heads : {1, 3})
    expect_same(
        [=](const ExecContext& ctx) {
          const Tensor all = random_tensor("all", {70, 3 * heads * 24}, ctx), w = random_tensor("w", {24}, ctx);
          const Tensor original = random_tensor("all", all.shape(), ctx),
                       gradients = random_tensor("g", all.shape(), ctx);
          const Tensor rstd = ctx.empty({70 * heads}), dw = random_tensor("dw", {24}, ctx);
          rms_norm_kernel({.x = middle(all, heads), .w = w, .y = middle(all, heads), .rstd = rstd}, ctx);
          rms_norm_backward_kernel({.x = middle(original, heads),
                                    .w = w,
                                    .rstd = rstd,
                                    .dy = middle(gradients, heads),
                                    .dx = middle(gradients, heads),
                                    .dw = dw,
                                    .beta_w = 0.5f},
                                   ctx);
          return std::vector<Tensor>{all, rstd, gradients, dw};
        },
        1e-5);
}

TEST_F(GpuKernels, RmsNormOfLongRows) {
  for (std::int64_t width : {1024, 1025, 5000, 20000})
    expect_same(
        [=](const ExecContext& ctx) {
          const Tensor x = random_tensor("x", {33, width}, ctx), w = random_tensor("w", {width}, ctx);
          const Tensor y = ctx.empty(x.shape()), rstd = ctx.empty({33}), dw = ctx.empty({width});
          const Tensor dx = random_tensor("dx", x.shape(), ctx), alone = ctx.empty(x.shape());
          rms_norm_kernel({.x = x, .w = w, .y = y, .rstd = rstd}, ctx);
          RmsNormBackward b{.x = x, .w = w, .rstd = rstd, .dy = y, .dx = dx, .dw = dw, .beta_x = 2};
          rms_norm_backward_kernel(b, ctx);
          b.dw = {};
          b.dx = alone;
          b.beta_x = 0;
          rms_norm_backward_kernel(b, ctx);
          return std::vector<Tensor>{y, rstd, dx, dw, alone};
        },
        1e-5);
}

TEST_F(GpuKernels, RopeInPlaceAndAccumulated) {
  expect_same(
      [](const ExecContext& ctx) {
        Values positions;
        for (int i = 0; i < 70; ++i) positions.push_back(i * 15013);
        const Tensor all = random_tensor("all", {70, 3 * 2 * 24}, ctx), out = random_tensor("out", {70, 2, 24}, ctx);
        const Tensor p = make_tensor({70}, DType::i32, positions, ctx);
        const Tensor inv_freq =
            make_tensor({12}, DType::f32, {1, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.001, 5e-4, 1e-4, 3e-5, 1e-6}, ctx);
        rope_kernel({.x = middle(all, 2), .out = middle(all, 2), .positions = p, .inv_freq = inv_freq}, ctx);
        rope_kernel(
            {.x = middle(all, 2), .out = out, .positions = p, .inv_freq = inv_freq, .inverse = true, .beta = 0.5f},
            ctx);
        return std::vector<Tensor>{all, out};
      },
      1e-6);
}

TEST_F(GpuKernels, SwiGluOfStridedRowsAndInPlace) {
  expect_same(
      [](const ExecContext& ctx) {
        const Tensor wide = random_tensor("wide", {300, 90}, ctx, 3), dy = random_tensor("dy", {300, 37}, ctx);
        const Tensor y = ctx.empty({300, 37}), gate_up = wide.narrow(1, 5, 74);
        swiglu_kernel({.gate_up = gate_up, .y = y}, ctx);
        swiglu_backward_kernel({.gate_up = gate_up, .dy = dy, .dgate_up = gate_up}, ctx);
        return std::vector<Tensor>{y, wide};
      },
      1e-6);
}

TEST_F(GpuKernels, DropoutMasksHaveTheSameAddresses) {
  for (std::int64_t first : {0, 1, 2, 3, 1003})
    expect_same(
        [=](const ExecContext& ctx) {
          const Tensor x = random_tensor("x", {1001}, ctx), residual = random_tensor("residual", {1001}, ctx);
          const Tensor out = ctx.empty({1001}), sum = random_tensor("sum", {1001}, ctx);
          Dropout d{
              .x = x, .out = out, .rate = 0.3f, .site = {.seed = 3, .step = 1, .site = 9}, .first_element = first};
          dropout_kernel(d, ctx);
          d.residual = residual;
          d.out = sum;
          d.beta = 2;
          dropout_kernel(d, ctx);
          return std::vector<Tensor>{out, sum};
        },
        1e-6);
}

TEST_F(GpuKernels, AxpbyOfNothingAndWithoutASecondOperand) {
  const ExecContext ctx = poisoned_device_context({Backend::cuda, 0});
  axpby_kernel({.x = ctx.empty({0}), .out = ctx.empty({0}), .alpha = 2}, ctx);
  const Tensor x = random_tensor("x", {1003}, ctx), out = ctx.empty({1003});
  axpby_kernel({.x = x, .y = ctx.empty({1003}), .out = out, .alpha = -2, .beta = 0}, ctx);
  Values want = read_values(x, ctx);
  for (double& v : want) v *= -2;
  EXPECT_EQ(read_values(out, ctx), want) << "beta = 0 read y";
  EXPECT_THROW(axpby_kernel({.x = x, .out = ctx.empty({4})}, ctx), Error);
}

TEST_F(GpuKernels, AnIdOutsideOfTheTableGivesNaN) {
  const ExecContext ctx = poisoned_device_context({Backend::cuda, 0});
  const Tensor table = random_tensor("table", {5, 6}, ctx), ids = make_tensor({4}, DType::i32, {4, 5, -1, 0}, ctx);
  const Tensor out = ctx.zeros({4, 6});
  embedding_kernel({.ids = ids, .table = table, .out = out, .add = true}, ctx);
  const Values got = read_values(out, ctx), rows = read_values(table, ctx);
  for (std::size_t c = 0; c < 6; ++c) {
    EXPECT_EQ(got[c], rows[4 * 6 + c]);
    EXPECT_TRUE(std::isnan(got[6 + c]) && std::isnan(got[12 + c])) << c;
    EXPECT_EQ(got[18 + c], rows[c]);
  }
}

// Three steps with a norm over two tensors, clipping and AdamW.
std::vector<Tensor> optimize(const ExecContext& ctx, std::int64_t n, double gradient_scale, float max_norm) {
  const Tensor param = random_tensor("param", {n}, ctx), m = ctx.zeros({n}), v = ctx.zeros({n});
  std::vector<Tensor> out = {param, m, v};
  for (std::uint32_t step = 0; step < 3; ++step) {
    const Tensor state = state_tensor({.step = step, .lr = 0.01f}, ctx);
    const Tensor grad = random_tensor(str("grad", step), {n}, ctx, gradient_scale),
                 other = random_tensor("o", {37}, ctx);
    squared_norm_kernel({.x = grad, .sum = squared_norm_of(state)}, ctx);
    squared_norm_kernel({.x = other, .sum = squared_norm_of(state)}, ctx);
    check_and_clip_kernel({.state = state, .max_norm = max_norm}, ctx);
    adamw_kernel({.param = param, .grad = grad, .m = m, .v = v, .state = state, .weight_decay = 0.1f}, ctx);
    const StepState s = read_state(state, ctx);
    out.push_back(from_host(std::vector<float>{s.squared_norm, s.clip, static_cast<float>(s.accepted)}, ctx.stream));
  }
  return out;
}

TEST_F(GpuKernels, OptimizerSteps) {
  for (std::int64_t n : {1, 37, 100003, 5000000})
    expect_same([=](const ExecContext& ctx) { return optimize(ctx, n, 0.1, 1.0f); }, 1e-6);
  expect_same([](const ExecContext& ctx) { return optimize(ctx, 1000, 1e-3, 0.0f); }, 1e-6);
}

TEST_F(GpuKernels, AStepThatIsNotFiniteChangesNothing) {
  const ExecContext ctx = poisoned_device_context({Backend::cuda, 0});
  Values bad = random_values("bad", 5000);
  bad[777] = std::nan("");
  const Tensor grad = make_tensor({5000}, DType::f32, bad, ctx), state = state_tensor({.lr = 1}, ctx);
  const Tensor param = random_tensor("param", {5000}, ctx), m = random_tensor("m", {5000}, ctx), v = ctx.zeros({5000});
  squared_norm_kernel({.x = grad, .sum = squared_norm_of(state)}, ctx);
  check_and_clip_kernel({.state = state, .max_norm = 1}, ctx);
  adamw_kernel({.param = param, .grad = grad, .m = m, .v = v, .state = state}, ctx);
  EXPECT_EQ(read_state(state, ctx).accepted, 0u);
  EXPECT_EQ(read_state(state, ctx).clip, 1.0f);
  EXPECT_EQ(read_values(param, ctx), read_values(random_tensor("param", {5000}, ctx), ctx));
  EXPECT_EQ(read_values(m, ctx), read_values(random_tensor("m", {5000}, ctx), ctx));
  EXPECT_EQ(read_values(v, ctx), Values(5000, 0.0));
}

TEST_F(GpuKernels, NormsHaveTheSameBitsEveryTime) {
  auto bits = [] {
    const ExecContext ctx = poisoned_device_context({Backend::cuda, 0});
    const Tensor x = random_tensor("x", {3000000}, ctx), state = state_tensor({}, ctx);
    squared_norm_kernel({.x = x, .sum = squared_norm_of(state)}, ctx);
    return read_state(state, ctx).squared_norm;
  };
  const float first = bits();
  EXPECT_GT(first, 0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(bits(), first);
}

}  // namespace
}  // namespace ring::test
