// Products with an activation on a GPU, with and without measured choices, against the CPU's.

#include "kernels/matmul.h"

#include <cmath>

#include "kernels/cublas/plan.h"
#include "kernels/shipped_choices.h"
#include "kernels/tuning.h"
#include "tests/kernels/op_case_checks.h"
#include "tests/kernels/poison_allocator.h"

namespace ring::test {
namespace {

struct MatmulExtents {
  std::int64_t n, m, k;
  bool bias;
};

Tensor rounded_tensor(const std::string& name, const Shape& shape, DType dtype, const ExecContext& ctx,
                      double scale = 1) {
  Values v = random_values(name, shape.numel(), scale);
  for (double& x : v) x = to_float(to_bf16(static_cast<float>(x)));
  return make_tensor(shape, dtype, v, ctx);
}

// Forward and backward: the activation's input and output, and the gradient through the activation.
std::vector<Tensor> activated(const MatmulExtents& e, DType dtype, const ExecContext& ctx) {
  const auto random = [&](const char* name, const Shape& shape, double scale = 1) {
    return rounded_tensor(name, shape, dtype, ctx, scale);
  };
  const double scale = 3 / std::sqrt(static_cast<double>(e.k));
  const Tensor a = random("a", {e.n, e.k}), w = random("w", {e.m, e.k}, scale), v = random("v", {e.k, e.m}, scale);
  const Tensor bias = e.bias ? random("bias", {e.m}) : Tensor{}, at = random("at", {e.n, e.m}, 3);
  const auto empty = [&] { return ctx.empty({e.n, e.m}, dtype); };
  const Tensor before = empty(), after = empty(), back = empty();
  matmul_kernel({.a = a, .b = w, .c = after, .transpose_b = true, .bias = bias, .gelu_input = before}, ctx);
  matmul_kernel({.a = a, .b = v, .c = back, .gelu_gradient_at = at}, ctx);
  return {before, after, back};
}

class GpuMatmul : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }
};
INSTANTIATE_TEST_SUITE_P(Measured, GpuMatmul, testing::Bool());

TEST_P(GpuMatmul, ActivatesTheProduct) {
  const ExecContext cpu = poisoned_context(2);
  ExecContext gpu = poisoned_device_context({Backend::cuda, 0});
  if (GetParam()) gpu.tuning = std::make_shared<Tuning>("");
  for (const MatmulExtents& e : {MatmulExtents{512, 768, 192, true}, MatmulExtents{512, 768, 192, false},
                                 MatmulExtents{33, 64, 24, true}, MatmulExtents{65, 36, 40, true}}) {
    const std::vector<Tensor> want = activated(e, DType::f32, cpu);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(str(dtype, ' ', e.n, 'x', e.m, 'x', e.k, e.bias ? " bias" : ""));
      const std::vector<Tensor> got = activated(e, dtype, gpu), again = activated(e, dtype, gpu);
      for (std::size_t i = 0; i < want.size(); ++i) {
        const double tolerance = dtype == DType::f32 ? 1e-5 : 5e-3;
        EXPECT_TRUE(close(read_values(got[i], gpu), read_values(want[i], cpu), tolerance)) << "tensor " << i;
        EXPECT_EQ(read_values(got[i], gpu), read_values(again[i], gpu)) << "tensor " << i << ": two runs differ";
      }
    }
  }
}

// Measuring leaves the sums of a product unchanged, also if columns beside them hold other values. It takes no device
// memory.
TEST(GpuMatmulSums, AreMeasuredWhereTheyAre) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  const ExecContext ctx{Stream::create({Backend::cuda, 0})};
  ExecContext measures = ctx;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    measures.tuning = std::make_shared<Tuning>("");
    const Tensor a = rounded_tensor("a", {512, 256}, dtype, ctx), b = rounded_tensor("b", {256, 384}, dtype, ctx);
    for (const bool narrow : {false, true}) {
      const auto sum = [&](const ExecContext& with) {
        const Tensor whole = rounded_tensor("c", {512, narrow ? 768 : 384}, DType::f32, ctx);
        matmul_kernel({.a = a, .b = b, .c = narrow ? whole.narrow(1, 384, 384) : whole, .beta = 1}, with);
        return to_host<float>(whole.view({whole.numel()}), ctx.stream);
      };
      const std::vector<float> want = sum(ctx);
      const auto allocator = ctx.stream.allocator();
      allocator->reset_peak();
      const std::size_t before = allocator->stats().peak;
      const std::size_t sums = static_cast<std::size_t>(512 * (narrow ? 768 : 384)) * sizeof(float);
      const std::vector<float> got = sum(measures);
      EXPECT_LE(allocator->stats().peak, before + sums + (1 << 16)) << "more than the sums themselves";
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-3 * (1 + std::abs(want[i]))) << i;
    }
  }
}

// Algorithms with clusters of 8 thread blocks fail when processes share a GPU. The library offers such algorithms for
// this product.
TEST(GpuMatmulChoices, HaveNoLargeClusters) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  const ExecContext gpu = poisoned_device_context({Backend::cuda, 0});
  const auto zeros = [&](const Shape& shape) { return make_tensor(shape, DType::bf16, Values(shape.numel()), gpu); };
  const Tensor x = zeros({32768, 256}), w = zeros({256, 256}), residual = zeros({32768, 256});
  const cublas::Plan plan(cublas::problem_of(
      Matmul{.a = x, .b = w, .c = gpu.empty(x.shape(), DType::bf16), .transpose_b = true, .residual = residual},
      gpu.precision));
  cublasLtHandle_t handle = nullptr;
  RING_CUBLAS_CHECK(cublas::library().create(&handle));
  const auto algorithms = plan.algorithms(handle, std::size_t{32} << 20, 8);
  cublas::library().destroy(handle);
  ASSERT_FALSE(algorithms.empty());
  for (const auto& algo : algorithms) EXPECT_FALSE(cublas::has_large_clusters(algo)) << cublas::to_text(algo);
}

TEST(ShippedMatmulChoices, HaveNoLargeClusters) {
  try {
    cublas::library();
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  int checked = 0;
  cublasLtMatmulAlgo_t algo;
  for (const auto& [key, choice] : shipped_choices())
    if (key.starts_with("matmul") && cublas::from_text(choice, algo)) {
      EXPECT_FALSE(cublas::has_large_clusters(algo)) << key;
      ++checked;
    }
  EXPECT_GT(checked, 1000);
  // Clusters of 2 x 4 blocks; a program that shares an H100 with others fails with this algorithm.
  ASSERT_TRUE(cublas::from_text("2100000042.100000023.0.9000000000003.1fc3400000001.e0000000e.44000e000e", algo));
  EXPECT_TRUE(cublas::has_large_clusters(algo));
}

}  // namespace
}  // namespace ring::test
