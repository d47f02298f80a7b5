#include "kernels/elementwise.h"

#include <cmath>

#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

__global__ void scale_f32(const float* x, float* out, float alpha, std::int64_t n) {
  for (std::int64_t i = 4 * thread_x(); i < n; i += 4 * threads_x()) {
    Quad q = load(x, i, n);
    for (float& v : q.v) v *= alpha;
    store(out, i, n, q);
  }
}

__global__ void axpby_f32(const float* x, const float* y, float* out, float alpha, float beta, std::int64_t n) {
  for (std::int64_t i = 4 * thread_x(); i < n; i += 4 * threads_x()) {
    Quad a = load(x, i, n);
    const Quad b = load(y, i, n);
    for (int j = 0; j < 4; ++j) a.v[j] = alpha * a.v[j] + beta * b.v[j];
    store(out, i, n, a);
  }
}

void run_axpby(const Axpby& args, const Context& ctx) {
  const std::int64_t n = args.out.numel();
  check_numel("axpby", "x", args.x, n);
  check_numel("axpby", "out", args.out, n);
  RING_CHECK(args.y.defined() || args.beta == 0, "axpby: beta is ", args.beta, " without y");
  const float* x = args.x.data<float>();
  float* out = args.out.data<float>();
  if (args.beta == 0) return launch(ctx, elements(ctx, n), scale_f32, x, out, args.alpha, n);
  check_numel("axpby", "y", args.y, n);
  launch(ctx, elements(ctx, n), axpby_f32, x, args.y.data<float>(), out, args.alpha, args.beta, n);
}

struct DropoutPointers {
  const float *x, *residual;
  float* out;
  float beta;
};
struct Mask {
  RandomSite site;
  std::int64_t first;  // global element of index 0
  std::uint32_t threshold;
  float scale;
};

// A thread takes the four elements of one draw: those with global numbers 4 block .. 4 block + 3.
__global__ void dropout_f32(DropoutPointers p, Mask mask, std::int64_t n) {
  const std::int64_t skip = mask.first % 4;
  for (std::int64_t i = 4 * thread_x() - skip; i < n; i += 4 * threads_x()) {
    const Philox4 bits = random_block(mask.site, static_cast<std::uint64_t>(mask.first + i) / 4);
    const Quad x = load(p.x, i, n);
    Quad y = p.residual ? load(p.residual, i, n) : Quad{};
    for (int j = 0; j < 4; ++j) y.v[j] += (bits.v[j] >> 8) >= mask.threshold ? x.v[j] * mask.scale : 0.0f;
    accumulate(p.out, i, n, p.beta, y);
  }
}

void run_dropout(const Dropout& args, const Context& ctx) {
  const std::int64_t n = args.out.numel();
  RING_CHECK(args.rate >= 0 && args.rate < 1, "dropout: rate ", args.rate, " is not in [0, 1)");
  RING_CHECK(args.first_element >= 0, "dropout: first element ", args.first_element);
  check_numel("dropout", "x", args.x, n);
  check_numel("dropout", "out", args.out, n);
  if (args.residual.defined()) check_numel("dropout", "residual", args.residual, n);
  const DropoutPointers p{args.x.data<float>(), args.residual.defined() ? args.residual.data<float>() : nullptr,
                          args.out.data<float>(), args.beta};
  const Mask mask{args.site, args.first_element,
                  static_cast<std::uint32_t>(std::ceil(static_cast<double>(args.rate) * 0x1p24)),
                  1.0f / (1.0f - args.rate)};
  launch(ctx, elements(ctx, n == 0 ? 0 : n + args.first_element % 4), dropout_f32, p, mask, n);
}

const bool axpby_added = axpby_kernel.add(Backend::cuda, {"f32", run_axpby});
const bool dropout_added = dropout_kernel.add(Backend::cuda, {"f32", run_dropout});

}  // namespace
}  // namespace ring::cuda
