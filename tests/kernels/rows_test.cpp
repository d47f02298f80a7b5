// Row-wise kernels on strided views and in place; results do not depend on the split of rows among threads.

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/activation.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/values.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

Tensor compact(const Tensor& t, const ExecContext& ctx) {  // a contiguous copy of [N,H,D] with unit last stride
  const Tensor out = ctx.empty(t.shape());
  for (std::int64_t n = 0; n < t.dim(0); ++n)
    for (std::int64_t h = 0; h < t.dim(1); ++h)
      for (std::int64_t d = 0; d < t.dim(2); ++d)
        out.data<float>()[(n * t.dim(1) + h) * t.dim(2) + d] = t.data<float>()[n * t.stride(0) + h * t.stride(1) + d];
  return out;
}

// Columns of a [N, 3 * heads * 16] tensor as [N, heads, 16], like queries or keys in a fused product.
struct Fused {
  Tensor all, view;
  Fused(std::int64_t n, std::int64_t heads, const ExecContext& ctx)
      : all(random_tensor("fused", {n, 3 * heads * 16}, ctx)),
        view(all.narrow(1, heads * 16, heads * 16).split_dim(1, 16)) {}
};

void expect_rest_untouched(const Fused& f, const ExecContext& ctx) {
  const Tensor original = random_tensor("fused", f.all.shape(), ctx);
  const std::int64_t width = f.all.dim(1);
  for (std::int64_t n = 0; n < f.all.dim(0); ++n)
    for (std::int64_t c = 0; c < width; ++c) {
      if (c >= width / 3 && c < 2 * width / 3) continue;
      ASSERT_EQ(f.all.data<float>()[n * width + c], original.data<float>()[n * width + c]) << n << "," << c;
    }
}

TEST(StridedRows, RmsNormWorksInPlaceOfAView) {
  const ExecContext ctx = poisoned_context(2);
  for (std::int64_t heads : {1, 3}) {
    const Fused f(50, heads, ctx);
    const Tensor w = random_tensor("w", {16}, ctx), rstd = ctx.empty({50 * heads});
    const Tensor x = compact(f.view, ctx), y = ctx.empty(x.shape());
    rms_norm_kernel({.x = x, .w = w, .y = y, .rstd = rstd}, ctx);
    const Values want_rstd = read_values(rstd);
    rms_norm_kernel({.x = f.view, .w = w, .y = f.view, .rstd = rstd}, ctx);
    EXPECT_EQ(read_values(compact(f.view, ctx)), read_values(y));
    EXPECT_EQ(read_values(rstd), want_rstd);
    expect_rest_untouched(f, ctx);
  }
}

TEST(StridedRows, RmsNormBackwardWritesIntoAView) {
  const ExecContext ctx = poisoned_context(2);
  const Fused x(50, 3, ctx), dy(50, 3, ctx);
  const Tensor w = random_tensor("w", {16}, ctx), rstd = ctx.empty({150}), y = ctx.empty({50, 3, 16});
  rms_norm_kernel({.x = x.view, .w = w, .y = y, .rstd = rstd}, ctx);
  const Tensor dx = ctx.empty(y.shape()), dw = ctx.empty({16}), dw2 = ctx.empty({16});
  rms_norm_backward_kernel({compact(x.view, ctx), w, rstd, compact(dy.view, ctx), dx, dw}, ctx);
  rms_norm_backward_kernel({x.view, w, rstd, dy.view, dy.view, dw2}, ctx);  // dx written over dy
  EXPECT_EQ(read_values(compact(dy.view, ctx)), read_values(dx));
  EXPECT_EQ(read_values(dw2), read_values(dw));
  expect_rest_untouched(dy, ctx);
}

TEST(StridedRows, RopeWorksInPlaceOfAViewAndBack) {
  const ExecContext ctx = poisoned_context(2);
  const Fused f(50, 3, ctx);
  Values positions;
  for (int n = 0; n < 50; ++n) positions.push_back(n * 3 % 17);
  const Tensor p = make_tensor({50}, DType::i32, positions, ctx);
  const Tensor inv_freq = make_tensor({8}, DType::f32, {1, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.001}, ctx);
  const Tensor x = compact(f.view, ctx), y = ctx.empty(x.shape());
  rope_kernel({.x = x, .out = y, .positions = p, .inv_freq = inv_freq}, ctx);
  rope_kernel({.x = f.view, .out = f.view, .positions = p, .inv_freq = inv_freq}, ctx);
  EXPECT_EQ(read_values(compact(f.view, ctx)), read_values(y));
  expect_rest_untouched(f, ctx);
  rope_kernel({.x = f.view, .out = f.view, .positions = p, .inv_freq = inv_freq, .inverse = true}, ctx);
  const Values back = read_values(compact(f.view, ctx)), want = read_values(x);
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(back[i], want[i], 1e-6);
}

// Returns every output of the row-wise kernels for one thread count.
std::vector<Values> row_wise_outputs(int threads) {
  const ExecContext ctx = poisoned_context(threads);
  const Tensor x = random_tensor("x", {1000, 74}, ctx), w = random_tensor("w", {74}, ctx), y = ctx.empty({1000, 74});
  const Tensor rstd = ctx.empty({1000}), mean = ctx.empty({1000}), half = ctx.empty({1000, 37});
  std::vector<Values> out;
  rms_norm_kernel({x, w, y, rstd}, ctx);
  out.push_back(read_values(y));
  rms_norm_backward_kernel({.x = x, .w = w, .rstd = rstd, .dy = x, .dx = y}, ctx);
  out.push_back(read_values(y));
  layer_norm_kernel({x, w, w, y, mean, rstd}, ctx);
  out.push_back(read_values(y));
  layer_norm_backward_kernel({.x = x, .w = w, .mean = mean, .rstd = rstd, .dy = x, .dx = y}, ctx);
  out.push_back(read_values(y));
  swiglu_kernel({x, half}, ctx);
  out.push_back(read_values(half));
  swiglu_backward_kernel({x, half, y}, ctx);
  out.push_back(read_values(y));
  Values targets;
  for (int n = 0; n < 1000; ++n) targets.push_back(n % 74);
  const Tensor ids = make_tensor({1000}, DType::i32, targets, ctx), table = ctx.empty({74, 74});
  cross_entropy_kernel({.logits = x, .targets = ids, .loss = mean, .vocab = 74}, ctx);
  out.push_back(read_values(x));
  out.push_back(read_values(mean));
  embedding_backward_kernel({ids, y, table}, ctx);
  out.push_back(read_values(table));
  return out;
}

TEST(RowWise, AnyNumberOfThreadsGivesTheSameBits) {
  const std::vector<Values> one = row_wise_outputs(1);
  EXPECT_EQ(row_wise_outputs(2), one);
  EXPECT_EQ(row_wise_outputs(3), one);
}

}  // namespace
}  // namespace ring::test
